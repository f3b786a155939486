"""Which tests ``make test`` keeps in one process."""

from __future__ import annotations

import pytest

from tests.plugins.side_by_side import dealt_out, group_of, small_ones_last


def test_a_file_is_a_group(tmp_path):
    """Fixtures of its module are made once."""
    (tmp_path / "test_a.py").write_text("def test_one(broker): ...\n")
    assert group_of(tmp_path, "test_a.py::test_one") == "test_a.py"


def test_files_that_share_a_costly_fixture_are_one_group(tmp_path):
    """All tests of the file, whichever uses it; the more costly of two fixtures decides."""
    (tmp_path / "test_a.py").write_text(
        "import airflow\n\ndef test_one(): ...\n\ndef test_two(\n    kafka, airflow: Airflow\n): ...\n"
    )
    (tmp_path / "test_b.py").write_text("class TestIt:\n    def test_one(self, replicated): ...\n")
    (tmp_path / "test_c.py").write_text(
        "def test_one(replicated): ...\n\ndef test_two(airflow, folder): ...\n"
    )
    assert group_of(tmp_path, "test_a.py::test_one") == group_of(tmp_path, "test_a.py::test_two") == "airflow"
    assert group_of(tmp_path, "test_b.py::TestIt::test_one") == "replicated"
    assert group_of(tmp_path, "test_c.py::test_one") == "airflow"


@pytest.mark.parametrize(
    "test",
    [
        "tests/protocol/test_interleavings.py::test_law_1[twins]",
        "tests/guarantees/test_without_law.py::test_it_fails[may_take_epoch-tests/a.py::test_a]",
    ],
)
def test_tests_that_share_nothing_may_run_anywhere(tmp_path, test):
    """They share no fixture, and their files take many minutes."""
    assert group_of(tmp_path, test) == test


def test_unit_tests_that_wait_for_no_program_are_last():
    """By whole files; other tests keep their place."""
    order = ["tests/system/a 1", "tests/unit/a 1", "tests/unit/b 1", "tests/unit/b 2 waits", "tests/unit/c 1"]
    assert small_ones_last(order, lambda test: test.split()[0], lambda test: test.endswith("waits")) == [
        "tests/system/a 1",
        "tests/unit/b 1",
        "tests/unit/b 2 waits",
        "tests/unit/a 1",
        "tests/unit/c 1",
    ]


def test_searches_are_dealt_out_between_groups_that_wait():
    """As many after each group; no test is lost, and the others keep their order."""
    others = ["b/1", "b/2", "c/1", "unit/1", "d/1", "unit/2"]
    searches = [f"search/{number}" for number in range(4)]
    order = dealt_out(searches, others, lambda test: test.partition("/")[0], ("b", "c", "d"))
    assert order == [
        "b/1",
        "b/2",
        *searches[:1],
        "c/1",
        *searches[1:2],
        "unit/1",
        "d/1",
        *searches[2:],
        "unit/2",
    ]
    assert dealt_out(searches, others[3:4], lambda test: test, ("b",)) == ["unit/1", *searches]
