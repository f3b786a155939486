"""Which tests ``make test`` keeps in one process."""

from __future__ import annotations

from tests.side_by_side import groups_of


def test_a_file_is_a_group():
    """Its module's fixtures are made once."""
    assert groups_of([("a.py", ["broker"]), ("b.py", []), ("a.py", [])]) == {"a.py": "a.py", "b.py": "b.py"}


def test_files_that_share_a_costly_fixture_are_one_group_as_a_whole():
    """Wherever in the file it is needed, and the first of two."""
    found = groups_of(
        [
            ("a.py", []),
            ("a.py", ["kafka", "airflow"]),
            ("a.py", []),
            ("b.py", ["airflow"]),
            ("c.py", ["replicated_kafka"]),
            ("d.py", ["replicated_kafka"]),
            ("d.py", ["airflow"]),
        ]
    )
    assert found == {"a.py": "airflow", "b.py": "airflow", "c.py": "replicated_kafka", "d.py": "airflow"}
