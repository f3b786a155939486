"""Sealed rows as bytes: nothing is lost, and the order of the bytes is that of the log."""

from __future__ import annotations

import sys

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.spark.opaque_rows import head, packed, unpacked
from airflow_eos.spark.sealed_rows import sealed_rows

NUMBERS = st.integers(0, 2**31 - 1)
ROWS = st.lists(
    st.tuples(
        NUMBERS,
        st.one_of(st.none(), st.text("abc.-_Z9", min_size=1, max_size=249)),
        st.integers(-3, 2**31 - 1),
        NUMBERS,
        st.integers(0, 2**63 - 1),
        st.one_of(st.none(), st.binary(max_size=50)),
    ),
    min_size=1,
    max_size=20,
)


def sealed(rows, task=7, attempt=2**40 + 1):
    return sealed_rows(task, attempt, rows)


@given(ROWS)
def test_every_row_comes_back_as_it_was(rows):
    """Also trailers, empty batches and batches with zero bytes; only the owner is in a separate column."""
    given_rows = sealed(rows)
    elements = list(packed([given_rows]))
    assert [owner for owner, _ in elements] == given_rows.column("owner").to_pylist()

    back = pa.Table.from_batches(list(unpacked((element for _, element in elements), rows=3)))
    assert back.column_names == given_rows.schema.names[1:]
    for name in back.column_names:
        assert back.column(name).to_pylist() == given_rows.column(name).to_pylist()


@given(ROWS)
def test_a_head_says_what_the_row_says(rows):
    """The size is that of the batch, none for a trailer."""
    for (_, element), (_, topic, partition, seq, records, batch) in zip(
        packed([sealed(rows)]), rows, strict=True
    ):
        fields, start = head(element)
        assert fields == (topic, partition, 7, 2**40 + 1, seq, records, None if batch is None else len(batch))
        assert batch is None or element[start:] == batch


@given(st.lists(st.tuples(st.text("ab.", min_size=1, max_size=4), NUMBERS, NUMBERS, NUMBERS), max_size=20))
def test_elements_sort_as_batches_stand_in_the_log(places):
    """By topic, partition, seal task and number, whatever the topics' names."""
    elements = []
    for topic, partition, task, seq in places:
        row = (0, topic, partition, seq, 1, b"")
        elements += [element for _, element in packed([sealed([row], task, 1)])]
    heads = [head(element)[0] for element in sorted(elements)]
    assert [(h.topic, h.partition, h.seal_partition, h.seq) for h in heads] == sorted(places)


@given(ROWS)
def test_rows_hold_no_element_once_they_are_gone(rows):
    """A Python worker serves many runs: it must free what it has sent."""
    elements = [element for _, element in packed([sealed(rows)])]
    before = [sys.getrefcount(element) for element in elements]
    for _ in unpacked(iter(elements), rows=3):
        pass
    assert [sys.getrefcount(element) for element in elements] == before
