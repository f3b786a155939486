from __future__ import annotations

import importlib
import importlib.resources
import json
import os
import types
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import airflow_eos
from airflow_eos import settings
from airflow_eos.provider_info import get_provider_info


def test_info_is_valid_under_airflows_own_schema() -> None:
    """Airflow's provider manager accepts our description."""
    text = importlib.resources.files("airflow").joinpath("provider_info.schema.json").read_text()
    jsonschema.validate(get_provider_info(), json.loads(text))


@pytest.mark.parametrize("kind", ["operators", "sensors", "hooks", "triggers"])
def test_every_listed_module_exists(kind: str) -> None:
    """Every announced module can be imported."""
    modules = [name for entry in get_provider_info()[kind] for name in entry["python-modules"]]
    assert modules
    for name in modules:
        assert importlib.import_module(name).__name__ == name


@pytest.mark.parametrize("kind", ["operators", "sensors", "hooks", "triggers"])
def test_every_module_with_such_classes_is_listed(kind: str) -> None:
    """A new sensor or trigger is announced with the change that adds it."""
    base = {
        "operators": "airflow.sdk.BaseOperator",
        "sensors": "airflow.sdk.BaseSensorOperator",
        "hooks": "airflow.sdk.BaseHook",
        "triggers": "airflow.triggers.base.BaseTrigger",
    }[kind]
    module, _, name = base.rpartition(".")
    wanted = getattr(importlib.import_module(module), name)
    listed = {name for entry in get_provider_info()[kind] for name in entry["python-modules"]}
    folder = Path(airflow_eos.__file__).parent / kind
    modules = set()
    for file in folder.glob("[a-z]*.py"):
        module = f"airflow_eos.{kind}.{file.stem}"
        values = vars(importlib.import_module(module)).values()
        # In Python 3.10 `list[int]` is an instance of type, too.
        own = [cls for cls in values if isinstance(cls, type) and not isinstance(cls, types.GenericAlias)]
        if any(issubclass(cls, wanted) and cls.__module__ == module for cls in own):
            modules.add(module)
    abstract = {
        "airflow_eos.sensors.waiting",
        "airflow_eos.triggers.condition",
    }
    assert modules - abstract <= listed


def test_task_decorator_can_be_imported() -> None:
    """``@task.kafka_eos`` leads to a function."""
    for entry in get_provider_info()["task-decorators"]:
        module, _, name = entry["class-name"].rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_connection_type_and_schemes_of_the_kafka_provider_are_left_alone() -> None:
    """Registering kafka again would replace the Kafka provider's own."""
    assert not {"connection-types", "asset-uris", "queues"}.intersection(get_provider_info())


def test_version_is_the_package_version() -> None:
    """The provider's version is that of the package."""
    assert get_provider_info()["versions"] == [airflow_eos.__version__]


def test_every_option_is_read_and_has_the_documented_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults documented for [eos] are those of the operator without configuration."""
    documented: dict[str, Any] = get_provider_info()["config"]["eos"]["options"]
    assert set(documented) == {
        "prefix",
        "origin",
        "ledger_topic",
        "ledger_key",
        "create_ledger",
        "require_encrypted_spark",
        "class_data_folder",
        "write_class_data",
        "ledger_record_url",
        "spark_history_url",
        "ui_kafka_config_id",
    }
    assert settings.ui_kafka_config_id() == documented["ui_kafka_config_id"]["default"]
    assert settings.ledger_record_url() == documented["ledger_record_url"]["default"]
    assert settings.spark_history_url() == documented["spark_history_url"]["default"]
    assert settings.default_prefix() == documented["prefix"]["default"]
    assert str(settings.require_encrypted_spark()) == documented["require_encrypted_spark"]["default"]
    assert documented["class_data_folder"]["default"] == ""
    assert settings.class_data_folder() == Path(os.environ["AIRFLOW_HOME"]) / "eos-class-data"
    assert str(settings.writes_class_data()) == documented["write_class_data"]["default"]
    assert settings.origin() == documented["origin"]["default"]
    ledger = settings.default_ledger()
    assert (ledger.topic, str(ledger.create)) == (
        documented["ledger_topic"]["default"],
        documented["create_ledger"]["default"],
    )
    assert settings.ledger_key() == ledger.key == documented["ledger_key"]["default"]
    for name in documented:
        monkeypatch.setenv(f"AIRFLOW__EOS__{name.upper()}", "False")
    monkeypatch.setenv("AIRFLOW__EOS__LEDGER_KEY", "0123456789abcdef")
    assert settings.default_ledger().key == settings.ledger_to_ask("other").key == "0123456789abcdef"
    assert (
        settings.default_prefix() == settings.ledger_record_url() == settings.spark_history_url() == "False"
    )
    assert settings.origin() == settings.ui_kafka_config_id() == "False"
    assert settings.default_ledger().topic == "False"
    assert settings.default_ledger().create is False
