"""Runs whose sink is a Delta Lake table, on a real broker: what is specific to publishing to Delta."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from deltalake import TableFeatures

from airflow_eos.run.states import State
from tests.integration.test_table_runs import (
    STATES,
    Died,
    die_at,
    # These run here, too, with the pipeline of this module.
    test_a_reprocessing_without_rows_takes_out_what_the_run_wrote,  # noqa: F401
    test_a_table_made_again_is_refused_until_the_intent_is_taken_back,  # noqa: F401
    test_a_zombie_of_a_replacement_changes_nothing,  # noqa: F401
    test_a_zombie_that_passed_its_last_fence_is_stopped_by_the_table,  # noqa: F401
    test_an_intent_of_a_table_that_can_no_longer_be_written_is_given_up_by_a_command,  # noqa: F401
    test_rows_of_a_table_that_can_no_longer_be_written_are_adopted,  # noqa: F401
    test_the_table_is_replaced_in_whatever_it_is_called,  # noqa: F401
    test_what_is_open_is_not_read_again_by_another_group,  # noqa: F401
)
from tests.support.lakes import DeltaLake
from tests.support.local_runs import Pipeline
from tests.support.tables import SCHEMA, LocalTablePlane


class DeltaPipeline(Pipeline):
    """A pipeline that appends to its own table."""

    def __init__(self, kafka, folder):
        super().__init__(kafka)
        self.lake = DeltaLake(folder, SCHEMA)
        self.spec = replace(self.spec, sink_topic=None, sink=self.lake.sink())

    def run(self, run_id="r1", **changes):
        return super().run(run_id, **{"data": LocalTablePlane, **changes})

    def values(self):
        return self.lake.values("value")

    def raise_format(self):
        """Enable a table feature that runs do not support."""
        self.lake.table.alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)

    def renamed(self, sink):
        return replace(sink, uri=f"file://{sink.uri}")

    def make_again(self):
        self.lake.drop()
        self.lake.create()


@pytest.fixture
def pipeline(embedded_kafka, tmp_path):
    return DeltaPipeline(embedded_kafka, tmp_path)


def test_rows_and_record_belong_together(pipeline):
    """The ledger's record has the table's version, and the table's history has the run's key and ranges."""
    pipeline.publish(["a", "b", "c"], partition=0)
    pipeline.publish(["d"], partition=1)
    record = pipeline.run()

    assert pipeline.values() == ["a", "b", "c", "d"]
    assert record.details["table"] == {
        "sink": f"delta:{pipeline.lake.folder}",
        "uuid": pipeline.lake.table.metadata().id,
        "snapshot": 1,
        "files": 1,
        "rows": 4,
    }
    (entry, _) = pipeline.lake.table.history()
    assert (entry["version"], entry["eos.run-key"]) == (1, record.run_key)
    assert entry["eos.ranges"] == f'[["{pipeline.source}",0,0,3],["{pipeline.source}",1,0,1]]'


def test_whoever_comes_after_a_death_at_any_state_leaves_each_record_once(pipeline):
    """The run is retried, or followed by the next run of its cursor; one pipeline goes through all states."""
    expected = []
    for number, (state, is_retry) in enumerate((state, retry) for state in STATES for retry in (True, False)):
        pipeline.publish([f"a{number:02}"])
        with pytest.raises(Died):
            pipeline.run(f"r{number}", on_state=die_at(state))
        pipeline.publish([f"b{number:02}"])
        pipeline.run(f"r{number}" if is_retry else f"other{number}", try_number=2)
        pipeline.run(f"next{number}")
        expected += [f"a{number:02}", f"b{number:02}"]
        assert pipeline.values() == sorted(expected), (state, is_retry)


def test_a_retry_adopts_what_the_table_has_after_its_log_was_cleaned_up(pipeline):
    """The rows were compacted and the history is gone; the record has the version that added them."""
    pipeline.publish(["a", "b"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED))
    published = pipeline.lake.table.version()
    pipeline.lake.append({"value": ["foreign"], "offset": [0]})
    pipeline.lake.table.optimize.compact()
    for entry in (pipeline.lake.folder / "_delta_log").glob("*.json"):
        os.utime(entry, (0, 0))
    pipeline.lake.table.create_checkpoint()
    pipeline.lake.table.cleanup_metadata()

    record = pipeline.run("r1", try_number=2)

    assert (record.details["table"]["snapshot"], record.details["table"]["rows"]) == (published, 2)
    assert sorted(pipeline.lake.scan()["value"].to_pylist()) == ["a", "b", "foreign"]
