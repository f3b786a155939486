"""The sink contract for Arrow results: what is accepted, converted or refused."""

from __future__ import annotations

import datetime as dt
import functools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from airflow_eos import arrow_process
from airflow_eos.exceptions import ConfigurationError, ProcessFailed, RecordRefused
from airflow_eos.model.arrow_result import own_values
from airflow_eos.spark import arrow_contract
from airflow_eos.spark.arrow_contract import sink_rows
from airflow_eos.spark.process import is_arrow_process

WHEN = dt.datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=dt.timezone.utc)
MILLISECONDS = 1_767_323_045_678


def rows(columns, sink_topic="out", source_topics=("src",)):
    return sink_rows(pa.table(columns), sink_topic, source_topics)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view()]
)
def test_text_and_bytes_of_any_arrow_type_become_binary(kind):
    """polars and others prefer large and view types."""
    converted = rows({"value": pa.array(["a", None, ""]).cast(pa.binary()).cast(kind)})
    assert converted.column("value").to_pylist() == [b"a", None, b""]
    assert converted.schema.field("value").type == pa.binary()


def test_dictionaries_are_decoded():
    """They represent categories of pandas and polars."""
    topic = pa.array(["dead", "src", "dead"]).dictionary_encode()
    converted = rows({"value": ["1", "2", "3"], "topic": topic})
    assert converted.column("topic").to_pylist() == ["dead", "out", "dead"]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.binary_view(), pa.binary(1)])
def test_values_beyond_32_bit_offsets_stay_large(kind, monkeypatch):
    """A few bytes of views, or of a dictionary, may represent gigabytes."""
    monkeypatch.setattr(arrow_contract, "SMALL", 2)
    value = pa.array([b"a", b"b", b"c"]).cast(kind)
    for column in (value, pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), value)):
        assert rows({"value": column})["value"].to_pylist() == [b"a", b"b", b"c"]
        assert rows({"value": column})["value"].type == pa.large_binary()


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_views_are_cast_by_way_of_64_bit_offsets(kind):
    """More than 4 GiB of them once ended the process: the direct cast to binary wraps its offsets around."""
    views = pa.chunked_array([pa.array([b"a", None]).cast(kind)])
    assert own_values(views).type in (pa.large_string(), pa.large_binary())


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_dictionaries_of_views_are_decoded(kind):
    """Arrow itself cannot decode them."""
    words = pa.array([b"a", None]).cast(kind)
    value = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 0], pa.uint32()), words)
    converted = rows({"value": pa.chunked_array([value.slice(1), value])})
    assert converted.column("value").to_pylist() == [None, None, b"a", b"a", None, None, b"a"]


def test_numbers_in_an_array_that_is_filled_again_are_those_that_were_returned():
    """By the function's next call, which comes before the rows are sealed."""
    scratch = np.zeros(1, np.int32)
    returned = rows({"value": ["a"], "partition": pa.array(scratch)})
    scratch[0] = 1
    assert returned["partition"].to_pylist() == [0]


def test_a_topic_that_was_read_and_none_mean_the_sink():
    """Otherwise an identity process would write to its own source."""
    topic = pa.array(["src", None, "other", "out"])
    converted = rows({"value": ["1"] * 4, "topic": topic})
    assert converted.column("topic").to_pylist() == ["out", "out", "other", "out"]


def test_a_sink_that_is_also_read_stays_itself():
    """The topic is source and sink."""
    converted = rows({"value": ["1"], "topic": ["src"]}, sink_topic="src")
    assert converted.column("topic").to_pylist() == ["src"]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_timestamps_become_whole_milliseconds(unit):
    """Truncated, not rounded; also before 1970."""
    early = dt.datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=dt.timezone.utc)
    times = pa.array([WHEN, early, None], pa.timestamp("us", "UTC"))
    if unit == "ms":
        times = pa.array([WHEN.replace(microsecond=678_000)], pa.timestamp("ms", "Europe/Berlin"))
    converted = rows(
        {"value": ["x"] * len(times), "timestamp": times.cast(pa.timestamp(unit, times.type.tz))}
    )
    assert converted.column("timestamp").to_pylist() == [MILLISECONDS, -1, None][: len(times)]


@pytest.mark.parametrize(("unit", "per"), [("us", 1_000), ("ns", 1_000_000)])
def test_timestamps_at_the_limits_of_64_bits_become_milliseconds(unit, per):
    """Arrow's own rounding returns other values there, or raises."""
    limits = [-(2**63), -(2**63) + 1, -1, 0, 2**63 - 1, None]
    times = pa.array(limits, pa.int64()).cast(pa.timestamp(unit, "UTC"))
    converted = rows({"value": ["x"] * len(limits), "timestamp": times}).column("timestamp").to_pylist()
    assert converted == [None if limit is None else limit // per for limit in limits]


def test_headers_of_wider_types_are_taken():
    """Lists of structs with large strings, as polars makes them."""
    kind = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    headers = pa.array([[{"key": "h", "value": b"1"}], None], kind)
    converted = rows({"value": ["a", "b"], "headers": headers})
    assert converted.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}], None]


def headers_of(*names):
    """Return one header per row, with these names for its fields."""
    parts = [pa.field(name, kind) for name, kind in zip(names, (pa.string(), pa.binary()), strict=False)]
    return pa.array([[dict(zip(names, ("trace", b"1"), strict=False))]], pa.list_(pa.struct(parts)))


@pytest.mark.parametrize(
    "headers",
    [
        headers_of("key", "val"),
        headers_of("key", "Value"),
        headers_of("name", "value"),
        headers_of("key"),
        pa.array([[["trace", "1"]]]),
        pa.array(
            [[{"key": "a", "value": b"1"}] * 2], pa.list_view(headers_of("key", "value").type.value_type)
        ),
    ],
    ids=lambda headers: str(headers.type),
)
def test_headers_that_a_cast_would_lose_are_refused(headers):
    """Arrow's cast fills a field of another name with null, and truncates list views."""
    with pytest.raises(ProcessFailed, match=r"'headers' as .*; make it list<"):
        rows({"value": ["a"], "headers": headers})


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (headers_of("key", "value", "more"), [{"key": "trace", "value": b"1"}]),
        (pa.array([[("trace", b"1")]], pa.map_(pa.string(), pa.binary())), [{"key": "trace", "value": b"1"}]),
        (pa.array([[]]), []),
        (pa.array([[{"key": "trace", "value": None}]]), [{"key": "trace", "value": None}]),
    ],
    ids=lambda given: str(given.type) if isinstance(given, pa.Array) else "",
)
def test_headers_of_other_shapes_keep_their_values(headers, expected):
    """Maps, additional fields, empty lists and nulls without a type."""
    converted = rows({"value": ["a"], "headers": headers})
    assert converted.column("headers").to_pylist() == [expected]


def test_pandas_frames_and_record_batches_are_taken():
    """An index is not a column; other columns are ignored."""
    frame = pd.DataFrame({"value": ["a", "b"], "extra": [1, 2]}, index=[7, 8])
    assert sink_rows(frame, "out", ()).column_names == ["value"]
    batch = pa.record_batch({"value": [b"a"]})
    assert sink_rows(batch, "out", ()).num_rows == 1


def test_anything_with_arrows_stream_interface_is_taken():
    """For example polars frames."""

    class Frame:
        def __arrow_c_stream__(self, requested_schema=None):
            return pa.table({"value": ["a"]}).__arrow_c_stream__(requested_schema)

    assert sink_rows(Frame(), "out", ()).column("value").to_pylist() == [b"a"]


@pytest.mark.parametrize("nothing", [None, pa.table({"value": pa.array([], pa.binary())})])
def test_no_rows_are_none(nothing):
    """A process may drop all rows."""
    assert sink_rows(nothing, "out", ()) is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": ["a"]}, "no column 'value'"),
        ({"value": [1]}, "'value' as int64"),
        ({"value": ["a"], "key": [1.5]}, "'key' as double"),
        ({"value": ["a"], "topic": [1]}, "'topic' as int64"),
        ({"value": ["a"], "partition": ["1"]}, "'partition' as string"),
        ({"value": ["a"], "headers": ["x"]}, "'headers' as string"),
        ({"value": ["a"], "timestamp": pa.array([0], pa.timestamp("us"))}, "'timestamp' as timestamp"),
    ],
)
def test_columns_the_sink_cannot_write_are_refused(columns, message):
    """The error names column, type and remedy."""
    with pytest.raises(ProcessFailed, match=message):
        rows(columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"partition": [1 << 40]}, "'partition' with no partition number"),
        ({"headers": [[{"key": b"\xff", "value": b"x"}]]}, "'headers' that is none: Invalid UTF8"),
    ],
)
def test_values_the_sink_cannot_write_are_refused_with_their_record(columns, message):
    """Others of the column can be written: the record is then searched for."""
    with pytest.raises(RecordRefused, match=message):
        rows({"value": ["a"], **columns})


def test_two_columns_of_one_name_are_refused():
    """It is ambiguous which of them is meant."""
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["value", "value"])
    with pytest.raises(ProcessFailed, match="two columns named 'value'"):
        sink_rows(table, "out", ())


def test_a_missing_topic_is_refused():
    """There is neither a sink topic nor a column."""
    with pytest.raises(ProcessFailed, match="no sink topic"):
        rows({"value": ["a"]}, sink_topic=None)


def test_other_results_are_refused():
    """The error names the type that was returned, and those accepted."""
    with pytest.raises(ProcessFailed, match="returned list; it must return a pyarrow RecordBatch"):
        sink_rows(["a"], "out", ())


def test_the_declaration_survives_partials_and_leaves_the_function_callable():
    """A decorated function can be unit-tested, and op_kwargs can be bound to it."""

    @arrow_process
    def double(batch, times=2):
        return [batch] * times

    assert double("x") == ["x", "x"]
    assert is_arrow_process(functools.partial(functools.partial(double), times=3))
    assert not is_arrow_process(lambda df: df)


def test_what_cannot_carry_the_declaration_is_refused():
    """Built-ins cannot have attributes."""
    with pytest.raises(ConfigurationError, match="write a function or lambda around it"):
        arrow_process(len)
