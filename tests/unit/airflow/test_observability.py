"""Metrics, spans, links, outlet events and lineage of a run."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.sdk import DAG, TaskInstanceState

from airflow_eos.compat import AIRFLOW_VERSION, stats
from airflow_eos.exceptions import RunFenced
from airflow_eos.ledger.keys import cursor_run_key
from airflow_eos.lineage import run_lineage
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from airflow_eos.operators.retry import TransactionRetryPolicy
from airflow_eos.run.states import State
from tests.unit.airflow.fakes import FakeRun, a_record, make_context

TAGS = {"dag_id": "pipelines", "task_id": "copy"}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    """Every metric, as (kind, name, value); the fixture checks tags."""
    metrics: list[tuple[str, str, Any]] = []

    def record(kind: str) -> Any:
        def send(name: str, value: Any = 1, *, tags: Any) -> None:
            assert tags == TAGS
            metrics.append((kind, name, value))

        return send

    for kind in ("timing", "incr", "gauge"):
        monkeypatch.setattr(stats, kind, record(kind))
    return metrics


@pytest.fixture
def operator(dag: DAG) -> ReadProcessWriteOperator:
    return ReadProcessWriteOperator(
        task_id="copy", dag=dag, process=lambda df: df, topics=["src"], sink_topic="out", group_id="g"
    )


def test_committed_run_sends_its_metrics(
    operator: Any, runs: list[FakeRun], sent: list[tuple[str, str, Any]]
) -> None:
    """It has duration, counts, and the lag of the cursor."""
    FakeRun.outcome = a_record(details={"lag": 4, "undecided": 5})
    operator.execute(make_context(operator))
    assert [metric[:2] for metric in sent] == [
        ("timing", "eos.run.duration"),
        ("incr", "eos.run.records_read"),
        ("incr", "eos.run.records_written"),
        ("gauge", "eos.run.lag"),
        ("gauge", "eos.run.undecided"),
    ]
    assert [metric[2] for metric in sent[1:]] == [10, 10, 4, 5]
    assert sent[0][2] >= 0


@pytest.mark.parametrize(("late", "counted"), [(3, [3]), (0, []), (-1, [])])
def test_late_records_are_counted(
    operator: Any, runs: list[FakeRun], sent: list[tuple[str, str, Any]], late: int, counted: list[int]
) -> None:
    """In addition to the records read; zero, and unknown (-1), add nothing."""
    FakeRun.outcome = a_record(mode="interval", records_late=late)
    operator.execute(make_context(operator))
    assert [value for _, name, value in sent if name == "eos.run.records_late"] == counted


def test_run_found_in_the_ledger_counts_nothing(
    operator: Any, runs: list[FakeRun], sent: list[tuple[str, str, Any]]
) -> None:
    """Its records were counted when they were written."""
    FakeRun.outcome = a_record(found=True)
    operator.execute(make_context(operator))
    assert sent == []


def test_fenced_try_is_counted(operator: Any, runs: list[FakeRun], sent: list[tuple[str, str, Any]]) -> None:
    """One per try that a newer attempt replaced."""
    FakeRun.outcome = RunFenced("by epoch 7")
    with pytest.raises(RunFenced):
        operator.execute(make_context(operator))
    assert sent == [("incr", "eos.run.fenced", 1)]


def test_lost_answer_that_was_decided_is_counted(
    operator: Any, runs: list[FakeRun], sent: list[tuple[str, str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run went through UNKNOWN and is committed: by itself, although the record came from the ledger."""
    execute = FakeRun.execute
    FakeRun.outcome = a_record(found=True)

    def through_unknown(self: FakeRun) -> Any:
        assert self.on_state is not None
        for state in (State.PROVEN, State.UNKNOWN, State.FENCED, State.COMMITTED):
            self.on_state(state)
        return execute(self)

    monkeypatch.setattr(FakeRun, "execute", through_unknown)
    operator.execute(make_context(operator))
    assert [metric[1:] for metric in sent[1:]] == [
        ("eos.run.records_read", 10),
        ("eos.run.records_written", 10),
        ("eos.run.resolved", 1),
    ]
    sent.clear()
    FakeRun.outcome = a_record(found=True, try_number=2)  # another try committed it meanwhile
    operator.execute(make_context(operator))
    assert sent == [("incr", "eos.run.resolved", 1)]


def test_dead_letters_are_counted_where_there_are_any(
    operator: Any, runs: list[FakeRun], sent: list[tuple[str, str, Any]]
) -> None:
    """Once, by the try that committed them."""
    FakeRun.outcome = a_record(details={"dead_letters": 3})
    operator.execute(make_context(operator))
    assert ("incr", "eos.run.dead_letters", 3) in sent


def test_documented_metrics_are_those_that_are_sent() -> None:
    """A new metric needs a row in the documentation."""
    root = Path(__file__).parents[3]
    code = (root / "airflow_eos" / "operators" / "telemetry.py").read_text()
    sent = set(re.findall(r"stats\.\w+\(\"(eos\.run\.\w+)\"", code))
    rows = re.findall(r"^\| `(eos\.run\.\w+)` \|", (root / "docs" / "observing.md").read_text(), re.MULTILINE)
    assert sent == set(rows)
    assert len(sent) == 9


def test_each_state_is_a_span(operator: Any, runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch) -> None:
    """One span from state to state, without gaps, in the order of the run."""
    from opentelemetry import trace

    spans: list[dict[str, Any]] = []

    class Tracer:
        def start_span(self, name: str, start_time: int, attributes: dict[str, str]) -> Any:
            spans.append({"name": name, "start": start_time, "attributes": attributes})
            return self

        def end(self, end_time: int) -> None:
            spans[-1]["end"] = end_time

    monkeypatch.setattr(trace, "get_tracer", lambda name: Tracer())
    operator.execute(make_context(operator))
    assert runs[0].on_state is not None
    for state in (State.ASKED, State.FENCED, State.CHECKED):
        runs[0].on_state(state)
    assert [span["name"] for span in spans] == ["eos.run.asked", "eos.run.fenced", "eos.run.checked"]
    assert all(first["end"] == then["start"] for first, then in itertools.pairwise(spans))
    assert {tuple(span["attributes"].items()) for span in spans} == {tuple(TAGS.items())}


def test_links_lead_to_ledger_and_spark(
    operator: Any, runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[eos] configures their addresses."""
    monkeypatch.setenv("AIRFLOW__EOS__LEDGER_RECORD_URL", "https://ui/{topic}?key={key}&of={pipeline}")
    monkeypatch.setenv("AIRFLOW__EOS__SPARK_HISTORY_URL", "https://history/{application_id}/jobs")
    ledger, spark = operator.operator_extra_links
    assert [ledger.get_link(operator, ti_key=None), spark.get_link(operator, ti_key=None)] == ["", ""]
    FakeRun.outcome = a_record(details={"versions": {"application_id": "local-17"}})
    operator.execute(make_context(operator))
    assert ledger.get_link(operator, ti_key=None) == (
        "https://ui/airflow-eos-ledger?key=run%3Arun%2Fpipelines.copy%2Fscheduled__2026-11-20&of=pipelines.copy"
    )
    assert spark.get_link(operator, ti_key=None) == "https://history/local-17/jobs"


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, {}),
        ({"LEDGER_RECORD_URL": "https://ui/{key}"}, {"Ledger record"}),
        ({"SPARK_HISTORY_URL": "https://history/{application_id}"}, {"Spark UI"}),
    ],
)
def test_a_link_that_leads_nowhere_is_not_shown(
    dag: DAG, variables: dict[str, str], names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is its heading, also for a mapped task: checked on the Dag that the UI gets."""
    from tests.support.airflow_serialization import DagSerialization

    for name, value in variables.items():
        monkeypatch.setenv(f"AIRFLOW__EOS__{name}", value)
    given = {"process": lambda df: df, "sink_topic": "out", "topics": ["src"], "dag": dag}
    ReadProcessWriteOperator(task_id="one", group_id="g", **given)
    ReadProcessWriteOperator.partial(task_id="many", group_id="h", **given).expand(source_partition=[0, 1])
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    for task_id in ("one", "many"):
        assert set(serialized.get_task(task_id).operator_extra_link_dict) == set(names)


def test_the_author_is_told_of_a_mapped_task_that_could_not_be_rendered(dag: DAG) -> None:
    """Airflow ends that instance with the mapped operator: callbacks run after links and retry policy."""
    from airflow.sdk.execution_time.task_runner import finalize

    contexts: list[Any] = []
    given = {"process": lambda df: df, "sink_topic": "out", "topics": ["src"], "group_id": "g", "dag": dag}
    partial = ReadProcessWriteOperator.partial(task_id="many", on_failure_callback=contexts.append, **given)
    mapped = partial.expand(source_partition=[0, 1])
    context: Any = {"task": mapped}
    instance: Any = SimpleNamespace(task=mapped, start_date=None, end_date=None)
    finalize(instance, TaskInstanceState.FAILED, context, structlog.get_logger(), ValueError("no element"))
    assert contexts == [context]
    if AIRFLOW_VERSION >= (3, 3):  # before, an operator asks its policy itself
        assert isinstance(mapped.retry_policy, TransactionRetryPolicy)


def test_links_are_known_to_airflow(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The UI shows links of registered classes only."""
    monkeypatch.setenv("AIRFLOW__EOS__LEDGER_RECORD_URL", "https://ui/{key}")
    monkeypatch.setenv("AIRFLOW__EOS__SPARK_HISTORY_URL", "https://history/{application_id}")
    from airflow_eos.provider_info import get_provider_info

    listed = set(get_provider_info()["extra-links"])
    declared = {
        f"{type(link).__module__}.{type(link).__qualname__}" for link in operator.operator_extra_links
    }
    assert listed == declared


@pytest.fixture
def lineage(operator: Any) -> Any:
    """What OpenLineage's provider extracts from the operator: by its phase, as the JSON of an event."""
    from airflow.providers.openlineage.extractors.base import DefaultExtractor
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
    from openlineage.client.serde import Serde

    extractor = DefaultExtractor(operator)
    phases = {
        RunState.START: extractor.extract,
        RunState.COMPLETE: lambda: extractor.extract_on_complete(None),
        RunState.FAIL: lambda: extractor.extract_on_failure(None),
    }

    def event(name: str) -> dict[str, Any]:
        state = RunState(name)
        extracted = phases[state]()
        assert extracted is not None
        run = Run("01941f29-7c00-7087-8906-40e512c257bd", facets=extracted.run_facets)
        run_event = RunEvent(
            eventTime="2026-11-20T00:00:00Z",
            producer="https://example.com",
            run=run,
            job=Job("airflow", "copy"),
            eventType=state,
            inputs=extracted.inputs,
            outputs=extracted.outputs,
        )
        document: dict[str, Any] = Serde.to_dict(run_event)
        return document

    return event


def datasets(listed: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(dataset["namespace"], dataset["name"]) for dataset in listed]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:openlineage.*")
def test_lineage_names_topics_and_ranges(operator: Any, runs: list[FakeRun], lineage: Any) -> None:
    """Topics as datasets at start and failure; counts and offset ranges when complete."""
    source, sink = ("kafka://broker:9092", "src"), ("kafka://broker:9092", "out")
    started = lineage("START")
    assert (datasets(started["inputs"]), datasets(started["outputs"])) == ([source], [sink])
    assert "airflowEos" not in started["run"]["facets"]

    FakeRun.outcome = RunFenced("by epoch 7")
    context = make_context(operator)
    with pytest.raises(RunFenced):
        operator.execute(context)
    failed = lineage("FAIL")
    assert (datasets(failed["inputs"]), datasets(failed["outputs"])) == ([source], [sink])
    key = cursor_run_key("pipelines.copy", "scheduled__2026-11-20")
    assert failed["run"]["facets"]["airflowEos"]["run_key"] == key

    FakeRun.outcome = a_record()
    operator.execute(context)
    complete = lineage("COMPLETE")
    counts = {
        dataset["name"]: (stats["rowCount"], stats["size"])
        for dataset in complete["outputs"]
        for stats in [dataset["outputFacets"]["outputStatistics"]]
    }
    assert counts == {"out": (7, 700), "dead": (3, 300)}
    facet = complete["run"]["facets"]["airflowEos"]
    assert (facet["run_key"], facet["records_read"], facet["records_written"]) == (key, 10, 10)
    assert facet["offset_ranges"] == [{"topic": "src", "partition": 0, "start": 5, "end": 15}]
    assert facet["_producer"]
    assert facet["_schemaURL"].endswith("RunFacet")


@pytest.mark.parametrize(
    ("servers", "namespace"),
    [
        ("broker:9093,other:9092", "kafka://broker:9093"),
        ("PLAINTEXT://broker:9093", "kafka://broker:9093"),
        (" broker , other", "kafka://broker:9092"),
        ("SASL_SSL://[::1]", "kafka://[::1]:9092"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:openlineage.*")
def test_lineage_names_the_broker_by_host_and_port(servers: str, namespace: str) -> None:
    """By OpenLineage's naming rules, however the setting is written."""
    facets = run_lineage({"bootstrap.servers": servers}, ["src"], "out", None)
    assert {dataset.namespace for dataset in (*facets.inputs, *facets.outputs)} == {namespace}
