"""Converts PostgreSQL column types to Arrow types, and Arrow columns to the text that COPY reads.

Types without an Arrow counterpart (enumerations, arrays, ``inet``, ``interval``, ``json``, ...) take text in
PostgreSQL's own input form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from airflow_eos.exceptions import ProcessFailed, RecordRefused
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.sinks.columns import has_far_time, refuse_long_texts

_TYPES = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_HEADER = 4
"""PostgreSQL adds this to the length, or to precision and scale, in a type modifier (VARHDRSZ)."""
_MOST_DIGITS = 76
_CHUNK_ROWS = 65_536
_MOST_SECOND_DIGITS = 6
_LAST_DAY = 11_248_737
"""32767-12-31, in days since 1970-01-01: Arrow cannot format later years, or formats another year."""


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the table.

    :param declared: the type as SQL spells it.
    :param kind: base type in ``pg_type``, below any domain; empty for a type of an extension or a user.
    :param modifier: ``atttypmod``, -1: none.
    :param has_default: a value that is left out comes from a default, a sequence or an identity.
    :param computed: only the table itself writes it.
    """

    name: str
    declared: str
    kind: str
    modifier: int
    not_null: bool
    has_default: bool
    computed: bool

    def arrow_type(self, given: pa.DataType | None = None) -> pa.DataType:
        """Return the type of the values.

        :param given: the type that ``process`` returned: ``numeric`` without precision takes any exact one.
        """
        if self.kind != "numeric":
            return _TYPES.get(self.kind, pa.string())
        if self.modifier < _HEADER:
            exact = given is not None and (pa.types.is_decimal(given) or pa.types.is_integer(given))
            return given if exact else pa.decimal128(38, 9)
        precision = ((self.modifier - _HEADER) >> 16) & 0xFFFF
        scale = (((self.modifier - _HEADER) & 0x7FF) ^ 1024) - 1024  # 11 bits, signed
        # numeric(3, 5) holds 0.00123: five digits after the decimal point.
        digits = max(precision, scale)
        if digits > _MOST_DIGITS:
            return pa.string()
        return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)  # noqa: PLR2004


def wanted_schema(columns: Sequence[TargetColumn], given: pa.Schema, sink: PostgresTable) -> pa.Schema:
    """Return the columns to check a result against: those that it has, and those that cannot be left out.

    :raises ProcessFailed: the result has a column that the table computes.
    """
    types = dict(zip(given.names, given.types, strict=True))
    for column in columns:
        if column.computed and column.name in types:
            raise ProcessFailed(
                f"process returned column {column.name!r}, which {sink} generates: drop it from the result"
            )
    stored = [column for column in columns if not column.computed]
    unknown = types.keys() - {column.name for column in stored}
    return pa.schema(
        pa.field(
            column.name,
            column.arrow_type(types.get(column.name)),
            nullable=not (column.not_null or column.name in sink.key),
        )
        for column in stored
        # With an unknown column, all of them: its error message lists the table's columns.
        if unknown
        or column.name in types
        or column.name in sink.key
        or (column.not_null and not column.has_default)
    )


def check_values(values: pa.ChunkedArray, column: TargetColumn, sink: PostgresTable) -> None:
    """Raise RecordRefused for values that PostgreSQL would refuse, truncate or round."""
    if pa.types.is_string(values.type):
        if pc.any(pc.match_substring(values, "\0")).as_py():
            raise RecordRefused(
                f"process returned a NUL character in column {column.name!r}: {sink} cannot hold it; remove "
                "it, or use a column of type bytea"
            )
        if column.kind in ("varchar", "bpchar") and column.modifier >= _HEADER:
            refuse_long_texts(values, column.modifier - _HEADER, column.name, column.declared, str(sink))
    if not pa.types.is_temporal(values.type):
        return
    if has_far_time(values, _LAST_DAY):
        raise RecordRefused(
            f"process returned a value in column {column.name!r} outside the years 1 to 32767, which are "
            f"what a run writes to {sink} as {column.declared}: correct it, or leave it out"
        )
    if 0 <= column.modifier < _MOST_SECOND_DIGITS:
        numbers = pc.drop_null(values.cast(pa.int64()))
        step = 10 ** (_MOST_SECOND_DIGITS - column.modifier)
        if pc.any(pc.not_equal(pc.multiply(pc.divide(numbers, step), step), numbers)).as_py():
            raise RecordRefused(
                f"process returned a value that in column {column.name!r} has more digits of a second than "
                f"{sink} takes as {column.declared}: round it, or widen the column"
            )


def csv_chunks(rows: pa.Table) -> Iterator[bytes]:
    """Yield rows for COPY ... (FORMAT csv); texts are quoted, so that an empty one is not null."""
    options = pyarrow.csv.WriteOptions(include_header=False)
    for index, field in enumerate(rows.schema):
        if pa.types.is_binary(field.type):
            texts = [None if value is None else f"\\x{value.hex()}" for value in rows[index].to_pylist()]
            rows = rows.set_column(index, field.name, [pa.array(texts, pa.string())])
    for batch in rows.to_batches(max_chunksize=_CHUNK_ROWS):
        sink = pa.BufferOutputStream()
        pyarrow.csv.write_csv(batch, sink, options)
        yield sink.getvalue().to_pybytes()
