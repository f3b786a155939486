"""The DEBUG logs of PySpark's clients have no serialised tasks."""

from __future__ import annotations

import base64
import logging
import pickle

import pytest

from airflow_eos.spark.task_log import hide_tasks

PICKLED = pickle.dumps({"config": {"sasl.password": "password-marker"}, "padding": "x" * 60})


@pytest.fixture
def logged(caplog):
    """Log a message with one of PySpark's loggers; return what handlers get."""
    hide_tasks()
    hide_tasks()

    def log(name, message, *args):
        caplog.clear()
        logger = logging.getLogger(name)
        caplog.set_level(logging.DEBUG, name)
        disabled, logger.disabled = logger.disabled, False
        try:
            logger.debug(message, *args)
        finally:
            logger.disabled = disabled
        return caplog.messages[0]

    return log


@pytest.mark.parametrize("name", ["py4j.clientserver", "py4j.java_gateway"])
def test_arguments_in_base64_are_cut_from_commands_to_the_jvm(logged, name):
    """A plain search for the password does not find it there, but decoding the line does."""
    text = base64.b64encode(PICKLED).decode()
    command = f"c\no12\nmapInPandas\nj{text}\nro3\ne\n"
    shown = logged(name, f"Command to send: {command}")
    assert shown == f"Command to send: c\no12\nmapInPandas\n<{len(text) + 1} characters>\nro3\ne\n"


def test_bytes_are_cut_from_plans_of_spark_connect(logged):
    """The plan as its client logs it, with a function of ours."""
    from google.protobuf import text_format
    from pyspark.sql.connect.proto import CommonInlineUserDefinedFunction, PythonUDF

    function = CommonInlineUserDefinedFunction(
        function_name="seal", python_udf=PythonUDF(eval_type=207, command=PICKLED, python_ver="3.11")
    )
    text = text_format.MessageToString(function, as_one_line=True)
    assert "password-marker" in text
    shown = logged("pyspark.sql.connect.logging", f"ExecuteAndFetchAsIterator. Request: {text}")
    assert "password-marker" not in shown
    assert 'function_name: "seal"' in shown
    assert 'python_ver: "3.11"' in shown


def test_short_messages_are_as_they_were(logged):
    """Their arguments stay unchanged."""
    assert logged("py4j.clientserver", "Answer received: %s", "!yro12") == "Answer received: !yro12"
