"""A prefix with a dot is always refused: an ACL on "eos." would cover the ids of "eos.x"."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import DAG

from airflow_eos import settings
from airflow_eos.cli.main import main
from airflow_eos.compat import AirflowFailException
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from airflow_eos.sensors.run_committed import RunCommittedSensor
from tests.unit.airflow.fakes import make_context

REFUSED = pytest.raises(ConfigurationError, match=r"prefix 'eos\.x' .* without a dot")


def an_operator(dag: DAG, prefix: str) -> ReadProcessWriteOperator:
    return ReadProcessWriteOperator(
        task_id="copy", dag=dag, process=print, topics=["src"], sink_topic="out", group_id="g", prefix=prefix
    )


def test_a_dag_with_such_a_prefix_is_not_parsed(dag: DAG) -> None:
    """Neither with an operator nor with a sensor; a template is unknown until it is rendered."""
    with REFUSED:
        an_operator(dag, "eos.x")
    with REFUSED:
        RunCommittedSensor(task_id="wait", dag=dag, pipeline="p", prefix="eos.x")
    assert an_operator(dag, "{{ params.prefix }}").prefix == "{{ params.prefix }}"


def test_a_template_that_renders_one_fails_the_task(dag: DAG) -> None:
    """Before any request to a broker."""
    operator = an_operator(dag, "{{ params.prefix }}")
    operator.prefix = "eos.x"
    with REFUSED:
        operator.build_spec(make_context(operator))
    sensor = RunCommittedSensor(task_id="wait", dag=dag, pipeline="p", prefix="{{ params.prefix }}")
    sensor.prefix = "eos.x"
    with pytest.raises(AirflowFailException, match="without a dot"):
        sensor.poke(make_context(sensor))


def test_the_configuration_is_refused_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a parameter, with the same message."""
    monkeypatch.setenv("AIRFLOW__EOS__PREFIX", "eos.x")
    with REFUSED:
        settings.default_prefix()


@pytest.mark.parametrize("command", [("doctor",), ("abort", "--group", "g"), ("status", "--group", "g")])
def test_a_command_line_with_one_asks_no_broker(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command, also one that needs no ledger."""
    options = ("--bootstrap-servers", "127.0.0.1:1", "--prefix", "eos.x", "--output", "json")
    assert main([*command, *options]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "ConfigurationError"
    assert "without a dot" in error["message"]
