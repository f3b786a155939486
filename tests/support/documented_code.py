"""Python blocks of the documentation: those that name a file are excerpts of it, the others are run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
NAMES_FILE = re.compile(r"# (\S+\.py)\n")
"""The first line of an excerpt."""
_TRANSLATED = ("README.ko.md", "docs/ko/")  # another test compares their code with the English pages'


def blocks() -> dict[str, str]:
    """Return the blocks by page and first line of code that is not an import."""
    named: dict[str, str] = {}
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        if name.startswith(_TRANSLATED):
            continue
        for block in BLOCK.findall(page.read_text()):
            if NAMES_FILE.match(block):
                continue
            first = next(line for line in block.splitlines() if line and not re.match(r"from |import ", line))
            key = f"{name}: {first}"
            while key in named:
                key += " again"
            named[key] = block
    return named


def operators() -> dict[str, str]:
    """Return the blocks that create operators outside a Dag."""
    return {key: block for key, block in blocks().items() if re.search(r": \w+Operator[.(]", key)}


FUNCTIONS = (
    "docs/getting-started.md: spec = RunSpec(",
    "docs/getting-started.md: def test_large_orders_pass(spark):",
    "docs/getting-started.md: def test_my_dag(embedded_kafka, kafka_topic):",
    "docs/migrating.md: def process(df):",
    "docs/schemas.md: def process(df, schema, number):",
    "docs/security.md: def kafka_token(region):",
    "docs/spark-submit.md: def process(df):",
)
"""Blocks that ``tests/integration/test_documented_functions.py`` runs, in its order."""
_TUTORIAL = "tests/unit/airflow/test_tutorial_tables.py"
ELSEWHERE = {
    'README.md: @dag(schedule="@hourly", catchup=False)': "tests/unit/airflow/test_readme_dag.py",
    "docs/getting-started.md: # publish.py: an order every minute of the last three whole days": (
        "tools/try_getting_started.py"
    ),
    "docs/getting-started.md: @dag(schedule=None)": "tests/integration/test_trial.py",
    "docs/tutorial-tables.md: # create_table.py: the table that the orders go to": _TUTORIAL,
    "docs/tutorial-tables.md: # hold.py: commits to tables of the catalog wait until this ends": _TUTORIAL,
    "docs/tutorial-tables.md: # query.py: what DuckDB finds in the table": _TUTORIAL,
}
"""Whole Dags and scripts, and the file that runs each."""
