"""The Python of the documents that names no file: what is not an excerpt is run here."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FROM = re.compile(r"# \S+\.py\b")
_TRANSLATED = ("README.ko.md", "docs/ko/")  # another test compares their code with the English pages'


def blocks() -> dict[str, str]:
    """Return the blocks by page and first line of code that is no import."""
    pages = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    named: dict[str, str] = {}
    for page in pages:
        name = str(page.relative_to(ROOT))
        if name.startswith(_TRANSLATED):
            continue
        for block in _BLOCK.findall(page.read_text()):
            if _FROM.match(block):
                continue
            first = next(line for line in block.splitlines() if line and not re.match(r"from |import ", line))
            key = f"{name}: {first}"
            while key in named:
                key += " again"
            named[key] = block
    return named


def operators() -> dict[str, str]:
    """Return the blocks that make operators outside of a Dag."""
    return {key: block for key, block in blocks().items() if re.match(r"(?m).*: \w+Operator[.(]", key)}


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
ELSEWHERE = {
    'README.md: @dag(schedule="@hourly", catchup=False)': "tests/unit/airflow/test_readme_dag.py",
    "docs/getting-started.md: @dag(schedule=None)": "tests/integration/test_trial.py",
}
"""Blocks of whole Dags, and the tests that run them."""
