"""Reads the client configuration of a run from an Airflow connection of type ``kafka``."""

from __future__ import annotations

from typing import Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.sdk.log import mask_secret

from airflow_eos.compat import AirflowNotFoundException
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.hooks.masked_connection import connection_missing
from airflow_eos.wire.client_config import is_secret


class KafkaEosHook(KafkaBaseHook):
    """Read an Airflow ``kafka`` connection for read-process-write runs.

    All features of the Kafka provider's connections work: callbacks from the allow-list, managed
    authentication of Amazon MSK and Google Managed Kafka. The connection type is the provider's; it is not
    registered again. A run ignores group, offset and isolation settings of the connection, and sets
    its own.

    :param kafka_config_id: id of the connection.
    """

    def get_config(self) -> dict[str, Any]:
        """Return the client configuration in librdkafka's names; its secrets are masked in logs.

        :raises ConfigurationError: the connection lacks ``bootstrap.servers``, or they are not text, or it
            names a callback that cannot be imported, or that ``[apache_kafka] callback_allowlist`` does not
            allow.
        :raises AirflowNotFoundException: there is no such connection, or Airflow's API server or a secrets
            backend did not answer, for which Airflow raises the same.
        """
        try:
            config: dict[str, Any] = self._build_config()
        except AirflowNotFoundException as error:
            raise connection_missing(self.kafka_config_id) from error
        except (ValueError, ImportError) as error:
            raise ConfigurationError(
                f"the extra of Kafka connection {self.kafka_config_id!r} cannot be used: {error}"
            ) from error
        except AttributeError as error:
            # The provider treats the servers as text; a callback's module may also raise AttributeError.
            extra: Any = self.get_connection(self.kafka_config_id).extra_dejson
            if isinstance(extra, dict) and isinstance(extra.get("bootstrap.servers"), str):
                raise
            raise ConfigurationError(
                f"Kafka connection {self.kafka_config_id!r}: its extra must be a JSON object, in which "
                "'bootstrap.servers' must be text, such as 'host:9092,host2:9092'"
            ) from error
        for name, value in config.items():
            if type(value) in (str, int, float) and is_secret(name):
                mask_secret(str(value))
        return config

    def source_partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic, for a mapped operator to expand over.

        :raises UnknownTopic: the topic does not exist.
        """
        from airflow_eos.engine.control_plane import ControlPlane
        from airflow_eos.model.spec import Deployment

        with ControlPlane(Deployment(self.get_config())) as control:
            return list(range(control.cluster.describe_topics([topic])[topic].partitions))
