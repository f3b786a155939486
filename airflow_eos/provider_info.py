"""What Airflow's provider manager is told about this distribution; imported at every start of Airflow."""

from __future__ import annotations

from typing import Any

from airflow_eos import __version__

_INTEGRATION = "Kafka exactly-once"

_CONFIG = {
    "eos": {
        "description": (
            "Defaults of the exactly-once operators. An operator's own parameter wins; "
            "values are read when a task runs.\n"
        ),
        "options": {
            "prefix": {
                "description": (
                    "First part of every transactional id, up to its first dot: it holds none itself. Give\n"
                    "each environment that shares a Kafka cluster its own, and its own ledger\n"
                    "topic: two environments with the same Dag ids and prefix would fence each other. A run\n"
                    "that one of them committed in a shared ledger is refused in the other where prefix,\n"
                    "``origin``, topics, sink or ranges differ. Where brokers check ACLs grant\n"
                    "Write and Describe on transactional ids ``<prefix>.``, with pattern type PREFIXED.\n"
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "airflow-eos-staging",
                "default": "airflow-eos",
            },
            "origin": {
                "description": (
                    "Names this Airflow in the records of its runs. Another environment that shares\n"
                    "prefix and ledger has another origin: its records are refused here, not taken\n"
                    "for this one's success. Empty: host, port and path of ``[api] base_url``; where\n"
                    "that is not set, or is this machine's own (``localhost``), records name no\n"
                    "origin and none is compared. It must be the same for every worker of a\n"
                    "deployment. When the address changes set the old value here: records and cursors\n"
                    "stay this environment's own.\n"
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "airflow-staging",
                "default": "",
            },
            "ledger_topic": {
                "description": (
                    "Compacted topic that holds the record of every committed run. It must not be deleted\n"
                    "or re-created while pipelines that use it exist.\n"
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "airflow-eos-ledger",
                "default": "airflow-eos-ledger",
            },
            "ledger_key": {
                "description": (
                    "Secret that signs the records of the ledger (HMAC-SHA256): one that is not signed\n"
                    "with it does not count, whoever may write to the topic. All users of a ledger need\n"
                    "the same. 16 characters at least, such as ``openssl rand -base64 32`` makes.\n"
                    "Several, separated by blanks: the first one signs, each is believed.\n"
                    "``ledger_key_cmd`` and ``ledger_key_secret`` work as for Airflow's own secrets. Set\n"
                    "it before the first run, or run ``airflow eos sign``. Empty: no signatures.\n"
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": None,
                "default": "",
                "sensitive": True,
            },
            "create_ledger": {
                "description": (
                    "Whether runs may create the ledger topic where there never was one.\n"
                    "With False it must exist: ``airflow eos init`` creates it.\n"
                ),
                "version_added": "0.1.0",
                "type": "boolean",
                "example": "False",
                "default": "True",
            },
            "require_encrypted_spark": {
                "description": (
                    "Refuse runs whose Kafka credentials would travel to Spark in clear: by RPC without\n"
                    "encryption, or to a Spark Connect server elsewhere without TLS, or where Spark\n"
                    "answers everybody who reaches its ports (``spark.authenticate``). Otherwise a warning.\n"
                    "The settings count that the session has, whoever set them; of a submitted application\n"
                    "its conf alone.\n"
                ),
                "version_added": "0.1.0",
                "type": "boolean",
                "example": "True",
                "default": "False",
            },
            "class_data_folder": {
                "description": (
                    "Folder of the archives that `airflow eos warm-spark` writes, from which local Spark\n"
                    "sessions of tasks start sooner. Only this user or root may be able to write in it.\n"
                    "Empty: the folder eos-class-data in AIRFLOW_HOME.\n"
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "/opt/airflow/eos-class-data",
                "default": "",
            },
            "ledger_record_url": {
                "description": (
                    "Where a person can look at a record of the ledger: the link ``Ledger record`` of a\n"
                    "task. ``{topic}``, ``{key}`` and ``{pipeline}`` are filled in, encoded for a URL.\n"
                    "Empty: the run's page, where ``ui_kafka_config_id`` is set for workers, too.\n"
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "https://kafka-ui.example.com/topics/{topic}/messages?key={key}",
                "default": "",
            },
            "spark_history_url": {
                "description": (
                    "Where Spark's history server shows an application: the link ``Spark UI`` of a task.\n"
                    "``{application_id}`` is filled in. Empty: no link.\n"
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "https://spark-history.example.com/history/{application_id}/jobs/",
                "default": "",
            },
            "ui_kafka_config_id": {
                "description": (
                    "Connection of type ``kafka`` by which the API server reads the ledger for the page\n"
                    "*Exactly once* in the menu *Browse*. Give it a principal of its own that may only\n"
                    "read: Read on the ledger and on sinks, Describe on sources, on transactional ids and\n"
                    "on the cluster. Read when the API server starts. Empty: no page.\n"
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "kafka_page",
                "default": "",
            },
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
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_eos.operators.read_process_write",
                    "airflow_eos.operators.replay",
                    "airflow_eos.operators.submit",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_eos.sensors.kafka_data_interval",
                    "airflow_eos.sensors.kafka_lag",
                    "airflow_eos.sensors.run_committed",
                ],
            }
        ],
        "hooks": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_eos.hooks.kafka_eos", "airflow_eos.hooks.spark_driver"],
            }
        ],
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_eos.triggers.kafka_data_interval",
                    "airflow_eos.triggers.kafka_lag",
                    "airflow_eos.triggers.offset_range",
                    "airflow_eos.triggers.run_committed",
                    "airflow_eos.triggers.spark_driver",
                ],
            }
        ],
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
