"""The Java commands of one cluster: format the storage, run a server, keep the class-data archive."""

from __future__ import annotations

import base64
import logging
import os
import re
import subprocess
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos_testing import class_data
from airflow_eos_testing.exceptions import EmbeddedKafkaError
from airflow_eos_testing.jars import broker_classpath
from airflow_eos_testing.java import find_java
from airflow_eos_testing.properties import LOG4J2
from airflow_eos_testing.watchdog import process_mark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from airflow_eos_testing.broker import Broker

log = logging.getLogger(__name__)

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx512m")
"""C1 only: the optimising compiler does not pay in a broker's few seconds. Serial GC: fewer threads."""
_ORDERLY_END = 20.0
_formatted: dict[tuple[Any, ...], dict[Path, bytes]] = {}
"""Files of a formatted node by name, for each kind of cluster that this process has started."""


@dataclass(frozen=True)
class Launcher:
    """How to run Kafka's Java classes for the cluster in ``home``.

    :param archive: class-data archive for this Java and these jars; it may not exist yet.
    :param jvm_options: options of every JVM.
    """

    home: Path
    java: Path
    classpath: tuple[Path, ...]
    archive: Path
    jvm_options: tuple[str, ...] = QUICK_START

    @classmethod
    def find(cls, home: Path, version: str, jvm_options: Sequence[str] | None = None) -> Launcher:
        """Look up Java and the jars, which are fetched on first use; writes nothing into ``home``."""
        java, classpath = find_java(), broker_classpath(version)
        archive = class_data.archive_path(f"kafka-{version}", java, classpath)
        return cls(home, java, classpath, archive, tuple(jvm_options or QUICK_START))

    def command(self, main_class: str, *arguments: str, dump: bool = False) -> list[str]:
        """Return the argument vector for a main class.

        :param dump: write a class-data archive at a clean exit, unless there is one already.
        """
        if self.archive.exists():
            sharing = class_data.use_options(self.archive)
        else:
            sharing = class_data.dump_options(self._dumped) if dump and self._makes_archives else []
        # Kafka upper-cases names by the default locale: in Turkish, "classic" becomes "CLASSİC".
        settings = ["-Duser.language=en", process_mark(self.home)]
        settings.append(f"-Dlog4j2.configurationFile={self._write_log_settings()}")
        classpath = ["-cp", os.pathsep.join(map(str, self.classpath))]
        return [str(self.java), *self.jvm_options, *sharing, *settings, *classpath, main_class, *arguments]

    def format(self, configs: Mapping[Broker, Path], features: Mapping[str, int], timeout: float) -> None:
        """Format the storage of all nodes as one new cluster.

        Kafka's tool formats one node per version and set of feature levels. Its files differ between nodes in
        ids only: other nodes, and those of later clusters of this process, get a copy with ids of their own.

        :raises EmbeddedKafkaError: the tool failed; with its output.
        """
        kind = (self.classpath, *features.items())
        if kind not in _formatted:
            first, config = next(iter(configs.items()))
            self._format_one(first, config, features, timeout)
            paths = [path for path in first.data_folder.rglob("*") if path.is_file()]
            _formatted[kind] = {path.relative_to(first.data_folder): path.read_bytes() for path in paths}
        cluster_id = _new_id()
        for broker in configs:
            ids = {"cluster.id": cluster_id, "directory.id": _new_id(), "node.id": str(broker.node_id)}
            for name, content in _formatted[kind].items():
                path = broker.data_folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_with_ids(content, ids) if name.name == "meta.properties" else content)

    def _format_one(self, broker: Broker, config: Path, features: Mapping[str, int], timeout: float) -> None:
        arguments = ["format", "--cluster-id", _new_id(), "--config", str(config)]
        for name, level in features.items():
            arguments += ["--feature", f"{name}={level}"]
        with broker.log_path.open("ab") as output:
            done = subprocess.run(
                self.command("kafka.tools.StorageTool", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                timeout=timeout,
                check=False,
            )
        if done.returncode:
            raise EmbeddedKafkaError(
                f"StorageTool could not format broker {broker.node_id}.\n{broker.log_tail()}"
            )

    def publish_archive(self, broker: Broker) -> None:
        """Stop a broker that was started with ``dump`` if that makes an archive for later clusters."""
        if self.archive.exists() or not self._makes_archives:
            return
        try:
            broker.stop(timeout=_ORDERLY_END)
            if self._dumped.exists():
                class_data.install(self._dumped, self.archive)
        except (EmbeddedKafkaError, OSError) as error:
            log.info("No class-data archive was written, the next start is slower: %s", error)

    @property
    def _makes_archives(self) -> bool:
        """Whether to write an archive: only with the default JVM options, as it fits no others."""
        return self.jvm_options == QUICK_START

    @property
    def _dumped(self) -> Path:
        return self.home / "classes.jsa"

    def _write_log_settings(self) -> Path:
        path = self.home / "log4j2.xml"
        if not path.exists():
            path.write_text(LOG4J2)
        return path


def _new_id() -> str:
    """Return an id in Kafka's format, with a letter first: its tools take a leading "-" for an option."""
    return "e" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]


def _with_ids(properties: bytes, ids: Mapping[str, str]) -> bytes:
    """Return the properties with these ids in place of theirs; before 3.7 there is no ``directory.id``."""
    for key, value in ids.items():
        properties = re.sub(rf"(?m)^({key})=.*".encode(), rf"\1={value}".encode(), properties)
    return properties
