from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

import airflow_eos
from airflow_eos.broker.librdkafka import base_settings
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.ledger import keys
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, PartitionInterval, RangeMode
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos.model.spec_json import spec_from_json, spec_to_json
from airflow_eos.wire.client_config import ClientConfig
from tools import parameters_reference

DAY = Interval(
    dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc),
    dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=1))),
    dt.timedelta(minutes=3),
)
SPEC = RunSpec(
    kafka={"bootstrap.servers": "b:1", "socket.timeout.ms": 1000, "enable.ssl": True},
    pipeline="p",
    run_id="r",
    source_topics=("a", "b"),
    group_id="g",
    skip_offsets=(OffsetRange("a", 0, 3, 5),),
    sink_topic="c",
    allow_loop=True,
    prefix="x",
    origin="here",
    clear_number=2,
    try_number=3,
    on_committed="reprocess",
    transaction_timeout=dt.timedelta(seconds=600),
    delivery_timeout=dt.timedelta(seconds=61),
    max_send_attempts=5,
    compression="lz4",
    ledger=LedgerSettings("books", create=False, partitions=7, replication_factor=3),
    audit={"reason": "why"},
    task={"dag_id": "d", "task_id": "t", "map_index": -1, "run_id": "r"},
)


MODES = [
    Cursor(),
    Cursor(max_records=5, start="latest", until_caught_up=True, max_rounds=3),
    DAY,
    PartitionInterval("k", DAY),
    replace(DAY, accept_deleted=True),
    Explicit((OffsetRange("a", 0, 1, 2), OffsetRange("b", 1, 0, 0)), advance=True),
]


def test_every_range_mode_has_an_example():
    """The tests below cover each mode that a specification may have."""
    assert {type(ranges) for ranges in MODES} == set(get_args(RangeMode))


@pytest.mark.parametrize("ranges", MODES, ids=lambda ranges: type(ranges).__name__)
def test_a_range_mode_is_known_wherever_modes_are_listed(ranges):
    """Its runs are found by their pipeline, its ids have a form, and users can import it."""
    spec = replace(SPEC, ranges=ranges)
    assert keys.run_key(spec).startswith(keys.run_key_prefixes(spec.pipeline))
    transactional_id = keys.transactional_id(spec)
    assert keys.id_kind(transactional_id) in keys.ID_FORMS
    assert keys.belongs_to(transactional_id, spec.prefix, spec.pipeline, spec.group_id)
    name = type(ranges).__name__
    assert name in airflow_eos.__all__
    assert getattr(airflow_eos, name) is type(ranges)
    assert name in parameters_reference.GROUPS["What is read"]


@pytest.mark.parametrize("ranges", MODES, ids=lambda ranges: type(ranges).__name__)
def test_a_specification_survives_the_way_to_another_process(ranges):
    """Every field, in every range mode."""
    spec = replace(SPEC, ranges=ranges)
    assert spec_from_json(spec_to_json(spec)) == spec


def test_an_unknown_range_mode_is_refused():
    """It is of another version, and must not be read as explicit offset ranges."""
    data = json.loads(spec_to_json(SPEC))
    data["ranges"] = {"mode": "newest", "ranges": [["a", 0, 1, 2]], "advance": False}
    with pytest.raises(ConfigurationError, match=r"range mode 'newest' .* same version on both sides"):
        spec_from_json(json.dumps(data))


def test_a_mapped_cursor_keeps_its_partition():
    """One source partition."""
    spec = replace(SPEC, source_topics=("a",), source_partition=4)
    assert spec_from_json(spec_to_json(spec)).source_partition == 4


@pytest.mark.parametrize(
    "specify",
    [
        lambda number: Cursor(max_records=number),
        lambda number: OffsetRange("a", 0, 0, number),
        lambda number: replace(SPEC, max_dead_letters=number),
    ],
    ids=["cursor", "range", "spec"],
)
def test_a_number_that_json_has_not_is_refused_before_it_is_sent(specify):
    """NumPy's NaN, for example from pandas: a run with it could not write its record, after all its work."""
    with pytest.raises((ValueError, ConfigurationError), match="must be a whole number of at least"):
        specify(np.int64(2))


def test_a_callback_cannot_be_sent_and_its_name_is_told():
    """Managed authentication by callbacks must be configured on the other side."""
    with pytest.raises(ConfigurationError, match="oauth_cb"):
        spec_to_json(replace(SPEC, kafka={**SPEC.kafka, "oauth_cb": print}))


def token_of(argument: str) -> tuple[str, float]:
    """A callback that another process can import."""
    return argument, 0.0


def test_a_call_back_that_can_be_imported_goes_as_its_name() -> None:
    """Both clients take the name; a local function has none."""
    text = spec_to_json(replace(SPEC, kafka={**SPEC.kafka, "oauth_cb": token_of}))
    read = spec_from_json(text)
    assert read.kafka["oauth_cb"] == f"{__name__}.token_of"
    assert base_settings(ClientConfig.of(read.kafka))["oauth_cb"].args == (token_of,)
    with pytest.raises(ConfigurationError, match="dotted name"):
        spec_to_json(replace(SPEC, kafka={**SPEC.kafka, "oauth_cb": lambda argument: (argument, 0.0)}))


def test_another_version_is_refused():
    """Both sides must have the same package version."""
    with pytest.raises(ConfigurationError, match="version"):
        spec_from_json('{"v": 99}')


@pytest.mark.parametrize(
    "table",
    [
        IcebergTable("db.t", catalog="lake", branch="audit", properties={"uri": "http://c", "token": "s"}),
        DeltaTable("s3://lake/t", connection="lake", properties={"aws_session_token": "s"}),
        DeltaTable("/data/t", connection=None),
        PostgresTable("s.t", connection="pg", mode="upsert", key=["a", "b"], properties={"token": "s"}),
    ],
    ids=str,
)
def test_a_table_goes_with_the_properties_of_its_connection(table):
    """The other process could not look the connection up; equality ignores the properties."""
    spec = RunSpec(
        kafka={"bootstrap.servers": "b:1"},
        pipeline="p",
        run_id="r",
        source_topics=("a",),
        group_id="g",
        sink=table,
    )
    read = spec_from_json(spec_to_json(spec))
    assert read == spec
    assert read.sink.properties == table.properties
    assert "token" not in repr(spec)
    assert '"sink"' not in spec_to_json(SPEC)


def test_an_unknown_kind_of_table_is_refused():
    """The other side does not know it: it has another version, or the kind is not listed."""
    data = {**json.loads(spec_to_json(SPEC)), "sink": {"kind": "file"}}
    with pytest.raises(ConfigurationError, match=r"table of kind 'file' .* same version on both sides"):
        spec_from_json(json.dumps(data))
