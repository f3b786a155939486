# Every target sets up its environment: a fresh machine needs only Python 3.10+ and Java 17+.

# The interpreter of .venv; default: the one it was made with, at first python3.
PYTHON ?=
# Another version of Airflow, such as 3.2, gets an environment of its own.
AIRFLOW ?=
BIN := .venv$(if $(AIRFLOW),-airflow-$(AIRFLOW))/bin
INPUT ?=
SINK ?= topics
KEEP ?=
# Most tests spend time waiting for brokers and processes: four run in parallel on two cores.
JOBS ?= 4
# Some unit tests wait for a time-out, a thread or a process.
UNIT_JOBS ?= 3
SEED ?=
MINUTES ?=
KAFKA ?=
CELLS ?=

CHECKS := lint types layers
CAMPAIGN := topic-faults table-faults long-tests last-line
UNIT := tests/unit tests/protocol -n $(UNIT_JOBS)
AT_ONCE = $(MAKE) --no-print-directory --jobs 2 --output-sync=target

ORIGINAL_PATH := $(PATH)
# `airflow` is started by name, and Spark's workers must run the driver's Python.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python
# Importing Airflow writes a configuration file: keep it out of the caller's home folder.
export AIRFLOW_HOME := $(CURDIR)/.cache/airflow
export PYTHONUNBUFFERED := 1
# Another Spark or another checkout of this package must not shadow the pinned one.
unexport SPARK_HOME
unexport PYTHONPATH
# Hundreds of processes would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick coverage unit check docs bench chaos matrix images dist clean
.PHONY: $(CHECKS) $(CAMPAIGN) class-data

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Create .venv with the pinned dependencies; quick if it exists
	@PATH='$(ORIGINAL_PATH)' PYTHON='$(PYTHON)' AIRFLOW='$(AIRFLOW)' tools/setup

demo: setup ## Kill a run half way under a real scheduler and count what readers see; SINK=iceberg INPUT=flights.json KEEP=1
	@$(BIN)/python -m demo --sink $(SINK) $(if $(INPUT),--input '$(INPUT)') $(if $(KEEP),--hold)

test: setup ## Run the checks and all tests
	@start=$$(date +%s); $(AT_ONCE) $(CHECKS) class-data && \
	EOS_CHECK_SECONDS=$$(( $$(date +%s) - start )) \
	$(BIN)/python -m pytest -n $(JOBS) --durations 25

quick: check ## Run the checks and the unit tests in this process: no search, no server, no JVM; a minute on two cores
	$(BIN)/python -m pytest $(UNIT) -q -m 'not chaos and not jvm and not search and not process'

coverage: setup ## The unit tests without searches, with the lines and branches they reach; floors where promises are kept
	$(BIN)/python -m pytest $(UNIT) -q -m 'not chaos and not jvm and not search' --cov --cov-report=
	@$(BIN)/coverage report --include 'airflow_eos/run/*' --fail-under 87
	@$(BIN)/coverage report --include 'airflow_eos/ledger/*' --fail-under 93
	@$(BIN)/coverage report --include 'airflow_eos/recordbatch/*' --fail-under 98

unit: setup ## Run the unit tests and the searches of the protocol's model: no JVM, no broker, no network
	$(BIN)/python -m pytest $(UNIT) -m 'not chaos and not jvm' --durations 10

check: setup ## Lint, format, types, layers
	@$(AT_ONCE) $(CHECKS)

$(CHECKS) class-data: setup

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

layers:
	$(BIN)/lint-imports --no-cache

class-data:
	$(BIN)/python -m airflow_eos_testing.spark_jvm

docs: setup ## Build the documentation site into build/docs; warnings are errors, nothing is fetched
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d .cache/doctrees docs build/docs
	@echo "docs: build/docs/index.html"

bench: setup ## Measure a fresh process, then a warm session, against Spark, Flink and others; RECORDS= ROUNDS=
	$(BIN)/python -m benchmarks fresh
	$(BIN)/python -m benchmarks fresh --workload parse
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks way
	$(BIN)/python -m benchmarks protection

chaos: setup ## Faults at every state, then MINUTES=12 at random; SEED=1 KAFKA=3.9.2. Then the long tests
	@mkdir -p .cache && rm -f .cache/chaos.txt
	@$(MAKE) --no-print-directory --jobs 1 --keep-going $(CAMPAIGN)

# A failed part fails the campaign, but does not stop the next part.
$(CAMPAIGN): setup

topic-faults:
	$(BIN)/python -m chaos $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(KAFKA),--kafka $(KAFKA)) --line-to .cache/chaos.txt

table-faults:
	$(BIN)/python -m chaos.table_campaign $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

long-tests:
	EOS_SEED=$(SEED) $(BIN)/python -m pytest -m chaos -n $(JOBS) --durations 25

last-line:
	@cat .cache/chaos.txt

matrix: setup ## The tests on other versions of Python, Airflow, Spark and Kafka, into docs/versions.md; CELLS="..."
	$(BIN)/python tools/matrix.py $(CELLS)

images: setup ## Build the container images on a Debian base and run the flights Dag in them; KEEP=1 BROKERS=3
	@docker/images

dist: ## Build sdists and wheels into dist/, check them, install them and follow getting started with them
	@PATH='$(ORIGINAL_PATH)' PYTHON='$(PYTHON)' tools/dist

clean: ## Remove what set-up, tests and builds left here; the cache of broker jars stays
	rm -rf .venv .venv-airflow-* .cache build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
