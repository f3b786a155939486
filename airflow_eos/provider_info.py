"""The provider's description for Airflow's provider manager, which imports it at every start."""

from __future__ import annotations

from typing import Any

from airflow_eos import __version__

_INTEGRATION = "Kafka exactly-once"


def _option(
    description: str,
    *,
    type: str = "string",  # noqa: A002 - the schema's names
    example: str | None = None,
    default: str = "",
    **others: Any,
) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": type,
        "example": example,
        "default": default,
        **others,
    }


_CONFIG = {
    "eos": {
        "description": "Defaults of the exactly-once operators, read when a task or a command runs.\n",
        "options": {
            "prefix": _option(
                "First part of every transactional id, without a dot. Give each environment that\n"
                "shares a Kafka cluster its own prefix, ledger topic and consumer groups: two with the\n"
                "same Dag ids and prefix would fence each other. With ACLs, grant Write and Describe\n"
                "on transactional ids ``<prefix>.``, pattern type PREFIXED.\n",
                example="airflow-eos-staging",
                default="airflow-eos",
            ),
            "origin": _option(
                "Name of this Airflow in the records of its runs: another environment's record in a\n"
                "shared ledger is refused. Set the same for every worker of a deployment. Empty: host,\n"
                "port and path of ``[api] base_url``; if that is not set, or is this machine\n"
                "(``localhost``), origins are not compared. When the address changes, set the old\n"
                "value here to keep records and cursors.\n",
                example="airflow-staging",
            ),
            "ledger_topic": _option(
                "Compacted topic that holds the record of every committed run. Do not delete or\n"
                "re-create it while pipelines use it.\n",
                example="airflow-eos-ledger",
                default="airflow-eos-ledger",
            ),
            "ledger_key": _option(
                "Secret that signs the ledger's records (HMAC-SHA256); records that it did not\n"
                "sign do not count. All users of a ledger need the same key, of at least 16\n"
                "characters, such as ``openssl rand -base64 32`` makes. Set it before the first run,\n"
                "or run ``airflow eos sign``. Of several keys, separated by blanks, the first signs\n"
                "and each is believed. ``ledger_key_cmd`` and ``ledger_key_secret`` work as for\n"
                "Airflow's own secrets; while no backend returns the latter, tries fail. Empty: no\n"
                "signatures.\n",
                sensitive=True,
            ),
            "create_ledger": _option(
                "Whether runs may create the ledger topic where there never was one. With False,\n"
                "create it with ``airflow eos init``.\n",
                type="boolean",
                example="False",
                default="True",
            ),
            "require_encrypted_spark": _option(
                "Refuse runs rather than warn if credentials of Kafka or a table would reach Spark\n"
                "in clear: by RPC without encryption, to a remote Spark Connect server without TLS, or\n"
                "if Spark answers without authentication (``spark.authenticate``). The session's\n"
                "settings count, from any source; of a submitted application only its conf.\n",
                type="boolean",
                example="True",
                default="False",
            ),
            "class_data_folder": _option(
                "Folder of the archives that `airflow eos warm-spark` writes. Only this user or root\n"
                "may be able to write in it.\n"
                "Empty: the folder eos-class-data in AIRFLOW_HOME.\n",
                example="/opt/airflow/eos-class-data",
            ),
            "write_class_data": _option(
                "After a task that started Spark without class data, write them in the background:\n"
                "once, at the lowest priority, and at most once a day if that fails.\n",
                type="boolean",
                example="False",
                default="True",
            ),
            "ledger_record_url": _option(
                "Web page of a ledger record, for the link ``Ledger record`` of a task. ``{topic}``,\n"
                "``{key}`` and ``{pipeline}`` are filled in, encoded for a URL. Empty: the run's\n"
                "page, if ``ui_kafka_config_id`` is set for workers, too.\n",
                example="https://kafka-ui.example.com/topics/{topic}/messages?key={key}",
            ),
            "spark_history_url": _option(
                "Page of an application in Spark's history server, for the link ``Spark UI`` of a\n"
                "task. ``{application_id}`` is filled in. Empty: no link.\n",
                example="https://spark-history.example.com/history/{application_id}/jobs/",
            ),
            "ui_kafka_config_id": _option(
                "Connection of type ``kafka`` with which the API server reads the ledger for the page\n"
                "*Exactly once* in the menu *Browse*. Give it its own principal with read access:\n"
                "Read on the ledger and on sinks, Describe on sources, on transactional ids and on\n"
                "the cluster. Read when the API server starts. Empty: no page.\n",
                example="kafka_page",
            ),
        },
    }
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description, valid under Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-eos",
        "name": _INTEGRATION,
        "versions": [__version__],
        "description": "Exactly-once read-process-write batches between Apache Airflow, PySpark and "
        "`Apache Kafka <https://kafka.apache.org/>`__.\n",
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://kafka.apache.org/documentation/#semantics",
                "tags": ["apache"],
            }
        ],
        "operators": _modules("operators", "read_process_write", "replay", "submit"),
        "sensors": _modules("sensors", "kafka_data_interval", "kafka_lag", "run_committed"),
        "hooks": _modules("hooks", "kafka_eos", "spark_driver"),
        "triggers": _modules(
            "triggers", "kafka_data_interval", "kafka_lag", "offset_range", "run_committed", "spark_driver"
        ),
        "task-decorators": [
            {"name": "kafka_eos", "class-name": "airflow_eos.decorators.kafka_eos.kafka_eos_task"}
        ],
        "extra-links": [
            "airflow_eos.links.run_links.LedgerRecordLink",
            "airflow_eos.links.run_links.SparkUiLink",
        ],
        "plugins": [{"name": "airflow_eos", "plugin-class": "airflow_eos.ui.plugin.EosPlugin"}],
        "cli": ["airflow_eos.cli.airflow_commands.get_eos_cli_commands"],
        "config": _CONFIG,
    }


def _modules(package: str, *names: str) -> list[dict[str, Any]]:
    modules = [f"airflow_eos.{package}.{name}" for name in names]
    return [{"integration-name": _INTEGRATION, "python-modules": modules}]
