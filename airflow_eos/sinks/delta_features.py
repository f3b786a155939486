"""Requirements of Delta Lake tables that a run does not meet: refuses such tables before anything is read.

Features: https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Valid Feature Names in Table Features".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import UnknownTable

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa

# deltalake writes no table of version 6, which may have identity columns; version 7 names features.
WRITER_VERSIONS = (1, 2, 3, 4, 5, 7)
# An append satisfies these as it is, or they take effect only through properties or columns, which are
# checked below.
FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
_COLUMN = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated column",
    "delta.identity.": "an identity column",
    "CURRENT_DEFAULT": "a default value",
}
_DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""Column metadata: the CHAR or VARCHAR type in Spark of a column that is a string in Delta Lake."""
_OF_TEXT = re.compile(r"(?:var)?char\((?P<most>\d+)\)")
_CONSTRAINT = "delta.constraints."
_MAPPING = "delta.columnMapping.mode"
_RETENTION = "delta.setTransactionRetentionDuration"
TARGET, INDEXED = "delta.targetFileSize", "delta.dataSkippingNumIndexedCols"
_NUMBERS = {TARGET: r"[0-9]+ *[kmgtp]?b?", INDEXED: "-?[0-9]+"}
_ONE_TEXT = ("string", "byte", "short", "integer", "long", "boolean", "date", "timestamp", "timestamp_ntz")
"""Types of partition columns, besides decimals, whose values have exactly one text form."""


def refuse_unwritable(name: str, table: deltalake.DeltaTable) -> None:
    """Raise UnknownTable, with the reason, if an append does not meet all requirements of a table."""
    metadata = table.metadata()
    fields = json.loads(table.schema().to_json())["fields"]
    for reason in (
        *_of_protocol(table.protocol()),
        *_of_properties(metadata.configuration),
        *_of_columns(fields),
        *_of_partitions(fields, metadata.partition_columns),
    ):
        raise UnknownTable(f"{name} {reason}")


def declared_length(field: pa.Field) -> tuple[str, int] | None:
    """Return the declared type of a text column with a maximum length, and that length; else None."""
    match = _OF_TEXT.fullmatch((field.metadata or {}).get(_DECLARED.encode(), b"").decode())
    return None if match is None else (match[0], int(match["most"]))


def _of_protocol(protocol: Any) -> Iterator[str]:
    unknown = sorted(set(protocol.writer_features or ()) - FEATURES)
    if unknown:
        yield f"has the table feature {unknown[0]!r}, which runs do not write; write another table"
    if protocol.min_writer_version not in WRITER_VERSIONS:
        yield f"needs writer version {protocol.min_writer_version}; written are {WRITER_VERSIONS}"


def _of_properties(configuration: dict[str, str]) -> Iterator[str]:
    for key in configuration:
        if key.startswith(_CONSTRAINT):
            constraint = key.removeprefix(_CONSTRAINT)
            yield f"has the check constraint {constraint!r}, which runs do not check; drop it"
    for key, form in _NUMBERS.items():
        if not re.fullmatch(form, configuration.get(key, "1").strip(), re.IGNORECASE):
            wrong = f"{key}={configuration[key]!r}"
            yield f"has {wrong}, neither a whole number nor a size as 100mb; correct or unset the property"
    if configuration.get(_MAPPING, "none") != "none":
        yield f"maps its columns to other names ({_MAPPING}), which runs do not write"
    if _RETENTION in configuration:
        yield (
            f"forgets who wrote it ({_RETENTION}={configuration[_RETENTION]!r}): a retry after that would "
            "not find what an earlier try has published; unset the property"
        )


def _of_columns(fields: list[dict[str, Any]], path: str = "") -> Iterator[str]:
    for field in fields:
        name = f"{path}{field['name']}"
        declared = field["metadata"].get(_DECLARED)
        if declared is not None and not _OF_TEXT.fullmatch(declared):
            yield f"has column {name!r} as {declared}, with texts whose length runs do not check"
        for key in field["metadata"]:
            for prefix, meaning in _COLUMN.items():
                if key.startswith(prefix):
                    yield f"has {meaning} in column {name!r} ({key}), which runs do not honour"
        yield from _of_type(field["type"], name)


def _of_type(kind: Any, name: str) -> Iterator[str]:
    if kind == "variant":
        yield f"has column {name!r} of type variant, which runs do not write"
    if not isinstance(kind, dict):
        return
    if kind["type"] == "struct":
        yield from _of_columns(kind["fields"], f"{name}.")
    for part in ("elementType", "keyType", "valueType"):
        yield from _of_type(kind.get(part), name)


def _of_partitions(fields: list[dict[str, Any]], partitions: list[str]) -> Iterator[str]:
    if {field["name"] for field in fields} <= set(partitions):
        yield "has no column beside those by which it is partitioned; its data files would have none"
    for field in fields:
        kind = field["type"]
        has_one_text = kind in _ONE_TEXT or str(kind).startswith("decimal")
        if field["name"] in partitions and not has_one_text:
            yield f"is partitioned by {field['name']!r} of type {kind}, which runs do not write"
