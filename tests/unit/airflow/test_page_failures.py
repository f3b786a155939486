"""A failed try's report to the page: the class of its error and one sentence, without secrets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_eos.exceptions import AuthorizationFailed
from airflow_eos.operators.failure_record import (
    FAILURE_KEY,
    MAX_SENTENCE,
    FailureRecord,
    first_sentence,
)
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from airflow_eos.ui.plugin import FailureListener

OURS = SimpleNamespace(build_spec=lambda _context: None)


class Instance:
    """A task instance that keeps pushed XComs."""

    def __init__(self, task: Any = OURS, error: BaseException | None = None) -> None:
        self.task, self.try_number, self.pushed = task, 3, dict[str, Any]()
        self._error = error

    def xcom_push(self, key: str, value: Any) -> None:
        if self._error is not None:
            raise self._error
        self.pushed[key] = value


def test_a_failed_try_names_class_and_first_sentence() -> None:
    """Airflow itself stores only the state of a try."""
    instance = Instance()
    error = AuthorizationFailed("the principal lacks Write on topic 'out'. Grant it.\nMore")
    FailureListener().on_task_instance_failed(instance, error)
    record = FailureRecord(3, "AuthorizationFailed", "the principal lacks Write on topic 'out'.")
    assert instance.pushed == {FAILURE_KEY: record.to_value()}
    assert FailureRecord.from_value(instance.pushed[FAILURE_KEY]) == record


def test_an_instance_whose_arguments_could_not_be_known_names_its_error(dag: DAG) -> None:
    """Airflow ends it with the mapped operator; once the page reported that its process had ended."""
    given = {"process": lambda df: df, "sink_topic": "out", "topics": ["src"], "group_id": "g", "dag": dag}
    mapped = ReadProcessWriteOperator.partial(task_id="many", **given).expand(source_partition=[0, 1])
    instance = Instance(mapped)
    FailureListener().on_task_instance_failed(instance, ValueError("no element"))
    assert instance.pushed[FAILURE_KEY]["sentence"] == "no element"


def test_airflow_calls_the_listener() -> None:
    """The plugin's listener, through Airflow's own manager, with its arguments."""
    from airflow.sdk._shared.listeners.listener import ListenerManager
    from airflow.sdk._shared.listeners.spec import taskinstance

    from airflow_eos.ui.plugin import EosPlugin

    manager = ListenerManager()
    manager.add_hookspecs(taskinstance)
    for listener in EosPlugin.listeners:
        manager.add_listener(listener)
    instance = Instance()
    manager.hook.on_task_instance_failed(
        previous_state="running", task_instance=instance, error=ValueError("x")
    )
    assert instance.pushed[FAILURE_KEY]["error"] == "ValueError"


def test_secrets_are_masked_before_the_sentence_is_cut() -> None:
    """Half of a secret would not be recognised."""
    from airflow.sdk.log import mask_secret

    secret = "hunter2-of-the-page"
    mask_secret(secret)
    padding = "x" * (MAX_SENTENCE - 10)
    for message in (f"refused: sasl.password={secret}", f"{padding} {secret}"):
        record = FailureRecord.of(ValueError(message), 1)
        assert "hunter2" not in record.sentence
        assert "***" in record.sentence


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("", ""),
        ("one", "one"),
        ("version 4.1 of x.y is not known", "version 4.1 of x.y is not known"),
        ("First! Second", "First!"),
        ("line\nSecond", "line"),
        ("a\x1b[2J\u202eb", "a\\x1b[2J\\u202eb"),
    ],
)
def test_the_first_sentence(message: str, sentence: str) -> None:
    assert first_sentence(message) == sentence


def test_a_sentence_is_bounded() -> None:
    assert len(first_sentence("x" * 10_000)) == MAX_SENTENCE


@pytest.mark.parametrize(
    ("task", "error"),
    [(OURS, "set by a user"), (OURS, None), (SimpleNamespace(), ValueError("x")), (None, ValueError("x"))],
)
def test_other_tasks_and_other_ends_push_nothing(task: Any, error: Any) -> None:
    instance = Instance(task)
    FailureListener().on_task_instance_failed(instance, error)
    assert instance.pushed == {}


def test_an_xcom_that_cannot_be_pushed_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The task has failed with its own error, which stays the one in the log."""
    FailureListener().on_task_instance_failed(Instance(error=RuntimeError("gone")), ValueError("x"))
    assert "will not show why" in caplog.text


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        [],
        {},
        {"v": 2, "try_number": 1, "error": "E", "sentence": "s"},
        {"v": 1, "try_number": "1", "error": "E", "sentence": "s"},
        {"v": 1, "try_number": True, "error": "E", "sentence": "s"},
        {"v": 1, "try_number": 1, "error": None, "sentence": "s"},
        {"v": 1, "try_number": 1, "error": "E", "sentence": ["s"]},
    ],
)
def test_what_is_not_a_failure_record_is_none(value: Any) -> None:
    """Any task in Airflow may write an XCom with that key."""
    assert FailureRecord.from_value(value) is None
