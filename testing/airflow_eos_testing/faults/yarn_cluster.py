"""A YARN cluster on loopback, whose daemons and containers a test can find and kill."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from airflow_eos_testing.exceptions import EmbeddedYarnError
from airflow_eos_testing.jars import yarn_classpath
from airflow_eos_testing.java import find_java
from airflow_eos_testing.launch import QUICK_START
from airflow_eos_testing.ports import HOST, free_ports
from airflow_eos_testing.watchdog import Watchdog, environment_mark, process_mark, processes_with

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

_SERVER = "org.apache.hadoop.yarn.server"
_MASTER = b"org.apache.spark.deploy.yarn.ApplicationMaster"
_EXECUTOR = b"org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
_RM_PORTS = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
_NM_PORTS = ("address", "localizer.address", "webapp.address")
_PORT_ATTEMPTS = 3
_POLL = 0.1
_TIMEOUT = 90.0
_LOG4J = """<Configuration status="ERROR"><Appenders><Console name="out" target="SYSTEM_OUT">
<PatternLayout pattern="%d{ISO8601} %-5p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="info"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


class YarnDaemon:
    """A resource manager or node manager; :meth:`start` restarts it on its existing state."""

    def __init__(self, name: str, command: list[str], env: Mapping[str, str], log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._command = command
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process without waiting until it is ready."""
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL the daemon and wait. A node manager's containers run on: nothing is left to end them."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def log_tail(self) -> str:
        """Return the end of the log."""
        with suppress(OSError):
            return f"{self.name}:\n{self.log_path.read_text(errors='replace')[-3000:]}"
        return f"{self.name} wrote no log"


class YarnCluster:
    """A resource manager and node managers; after the ``with`` block no process and no file is left.

    They and all containers end with their owner, even if it is killed. Node managers have host names of their
    own within 127/8. A node that does not report for 10 s is lost. Linux only (``/proc``).

    :param nodes: number of node managers.
    :param memory: MB that each node manager offers; they need not exist.
    :param cores: cores that each node manager offers; they need not exist.
    :param recovery: the resource manager keeps its state in files and recovers applications after a restart.
    :param acls: only an application's user (and the users in its ACLs) may end it.
    :param home: folder for settings, logs and work; default is a temporary one, removed at the end.
    """

    def __init__(
        self,
        nodes: int = 2,
        *,
        memory: int = 4096,
        cores: int = 4,
        recovery: bool = True,
        acls: bool = False,
        home: Path | None = None,
    ) -> None:
        self.user = getpass.getuser()
        self.webapp = ""
        self.home = Path()
        self._count, self._memory, self._cores = nodes, memory, cores
        self._recovery, self._acls = recovery, acls
        self._given_home = home
        self._watchdog: Watchdog | None = None
        self.resource_manager: YarnDaemon
        self.node_managers: list[YarnDaemon] = []

    def __enter__(self) -> Self:
        if self._given_home is None:
            self.home = Path(tempfile.mkdtemp(prefix="airflow-eos-yarn-"))
        else:
            self.home = self._given_home.resolve()
        self._watchdog = Watchdog(self.home, keep=self._given_home is not None)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all daemons and containers; a second call does nothing."""
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None
            for daemon in self.node_managers:
                daemon.kill()
            if hasattr(self, "resource_manager"):
                self.resource_manager.kill()

    # -- what a client needs ------------------------------------------------------------------------------

    @property
    def settings(self) -> Path:
        """``HADOOP_CONF_DIR`` for clients."""
        return self.home / "conf"

    @property
    def staging(self) -> Path:
        """Spark's staging folder for the files of running applications."""
        return self.home / "staging"

    def spark_conf(self) -> dict[str, str]:
        """Return Spark settings for a small application: this Python, one executor of one core per node."""
        import pyspark

        shipped = Path(str(pyspark.__file__)).parent
        conf = {
            "spark.yarn.jars": f"local:{shipped}/jars/*",
            "spark.yarn.stagingDir": self.staging.as_uri(),
            "spark.yarn.am.waitTime": "60s",
            "spark.executor.instances": str(self._count),
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        for prefix in ("spark.yarn.appMasterEnv", "spark.executorEnv"):
            conf |= {f"{prefix}.PYSPARK_PYTHON": sys.executable, f"{prefix}.SPARK_LOCAL_IP": HOST}
        return conf

    # -- applications -------------------------------------------------------------------------------------

    def application(self, application_id: str) -> dict[str, Any]:
        """Return the resource manager's report on an application, with the field names of its REST API."""
        report: dict[str, Any] = self._ask(f"apps/{application_id}")["app"]
        return report

    def applications(self) -> list[str]:
        """Return the ids of all applications, the oldest first."""
        return sorted(
            application["id"] for application in (self._ask("apps").get("apps") or {}).get("app", [])
        )

    def attempts(self, application_id: str) -> int:
        """Return the number of application masters started for an application."""
        return len(self._ask(f"apps/{application_id}/appattempts")["appAttempts"]["appAttempt"])

    def wait_until_ended(self, application_id: str, timeout: float = _TIMEOUT) -> str:
        """Wait until an application has ended, and return its final status."""
        ends = ("FINISHED", "FAILED", "KILLED")
        self._wait(
            lambda: self.application(application_id)["state"] in ends,
            "the application is still running",
            timeout,
        )
        return str(self.application(application_id)["finalStatus"])

    def application_masters(self, application_id: str) -> list[int]:
        """Return the process ids of the JVMs that run the driver: one, or two if an old one lives on."""
        return self._jvms(application_id, _MASTER)

    def executors(self, application_id: str) -> list[int]:
        """Return the process ids of the executors' JVMs."""
        return self._jvms(application_id, _EXECUTOR)

    def processes(self, application_id: str) -> list[int]:
        """Return the process ids of all containers of an application, with their descendants."""
        number = application_id.removeprefix("application_")
        return [pid for pid in self._all_pids() if f"\0CONTAINER_ID=container_{number}_" in _environment(pid)]

    def node_of(self, pid: int) -> YarnDaemon:
        """Return the node manager that started a container's process."""
        folder = str(Path(f"/proc/{pid}/cwd").readlink())
        return next(node for node in self.node_managers if f"/{node.name}/" in folder)

    def container_logs(self) -> str:
        """Return the output of all containers."""
        files = sorted(path for path in self.home.glob("node-*/logs/*/*/*") if path.is_file())
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')}" for path in files)

    def holding(self, text: str) -> list[Path]:
        """Return the files under :attr:`home` that contain a text: YARN's work, logs, staging and state."""
        containers = []
        for folder, _, names in os.walk(self.home):  # tolerates folders that are removed meanwhile
            for path in (Path(folder, name) for name in names):
                with suppress(OSError):
                    if path.is_file() and text.encode() in path.read_bytes():
                        containers.append(path)
        return containers

    def wait_until_ready(self) -> None:
        """Wait until the resource manager lists all live node managers as running.

        :raises EmbeddedYarnError: they are not in time; with the ends of the logs.
        """
        self._wait(self._is_ready, "it is not ready")

    def _is_ready(self) -> bool:
        nodes = (self._ask("nodes").get("nodes") or {}).get("node", [])
        running = sum(node["state"] == "RUNNING" for node in nodes)
        return running >= sum(node.is_alive for node in self.node_managers)

    def _all_pids(self) -> list[int]:
        ((name, value),) = environment_mark(self.home).items()
        return processes_with(f"{name}={value}")

    def _jvms(self, application_id: str, main_class: bytes) -> list[int]:
        pids = []
        for pid in self.processes(application_id):
            with suppress(OSError):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if main_class in arguments:  # not the shell, which has it as part of an argument
                    pids.append(pid)
        return sorted(pids)

    def _ask(self, path: str) -> dict[str, Any]:
        url = f"{self.webapp}/ws/v1/cluster/{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server
            content: dict[str, Any] = json.load(answer)
            return content

    def _wait(self, holds: Callable[[], bool], complaint: str, timeout: float = _TIMEOUT) -> None:
        deadline = time.monotonic() + timeout
        while True:
            with suppress(urllib.error.URLError, OSError, ValueError):
                if holds():
                    return
            if time.monotonic() > deadline:
                tails = "\n".join(
                    daemon.log_tail() for daemon in (self.resource_manager, *self.node_managers)
                )
                raise EmbeddedYarnError(f"YARN, after {timeout:.0f} s: {complaint}\n{tails}")
            time.sleep(_POLL)

    # -- start --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._configure()
            daemons = (self.resource_manager, *self.node_managers)
            for daemon in daemons:
                daemon.start()
            if self._all_start(daemons):
                return
            tails = "\n".join(daemon.log_tail() for daemon in daemons if not daemon.is_alive)
            for daemon in daemons:
                daemon.kill()
            if attempt == _PORT_ATTEMPTS or "in use" not in tails:  # another process took a port
                raise EmbeddedYarnError(f"YARN ended while starting\n{tails}")

    def _all_start(self, daemons: tuple[YarnDaemon, ...]) -> bool:
        def died() -> bool:
            return not all(daemon.is_alive for daemon in daemons)

        self._wait(lambda: died() or bool(self._ask("info")), "its resource manager does not answer")
        if not died():
            self._wait(lambda: died() or self._is_ready(), "its nodes are not ready")
        return not died()

    def _configure(self) -> None:
        java = find_java()
        ports = free_ports(len(_RM_PORTS) + self._count * len(_NM_PORTS))
        shared = {f"yarn.resourcemanager.{name}": f"{HOST}:{ports.pop()}" for name in _RM_PORTS}
        self.webapp = f"http://{shared['yarn.resourcemanager.webapp.address']}"
        ((mark, value),) = environment_mark(self.home).items()
        shared |= {
            "yarn.resourcemanager.hostname": HOST,
            "yarn.resourcemanager.recovery.enabled": str(self._recovery).lower(),
            "yarn.resourcemanager.store.class": (
                f"{_SERVER}.resourcemanager.recovery.FileSystemRMStateStore"
                if self._recovery
                else f"{_SERVER}.resourcemanager.recovery.MemoryRMStateStore"
            ),
            "yarn.resourcemanager.fs.state-store.uri": (self.home / "state").as_uri(),
            "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": "1000",
            "yarn.acl.enable": str(self._acls).lower(),
            "yarn.admin.acl": "nobody-is-administrator",
            "yarn.scheduler.minimum-allocation-mb": "64",
            "yarn.nm.liveness-monitor.expiry-interval-ms": "10000",
            "yarn.am.liveness-monitor.expiry-interval-ms": "30000",
            "yarn.resourcemanager.nm-container-queuing.min-queue-length": "1",
            "yarn.nodemanager.resource.memory-mb": str(self._memory),
            "yarn.nodemanager.resource.cpu-vcores": str(self._cores),
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
            "yarn.nodemanager.disk-health-checker.min-free-space-per-disk-mb": "0",
            "yarn.nodemanager.admin-env": f"{mark}={value}",
        }
        self._write_settings("conf", shared)
        self.staging.mkdir(exist_ok=True)
        self.resource_manager = self._daemon("resource-manager", java, "conf", "ResourceManager")
        self.node_managers = []
        for number in range(self._count):
            name = f"node-{number + 1}"
            host = f"127.0.0.{number + 1}"
            own = {f"yarn.nodemanager.{kind}": f"{host}:{ports.pop()}" for kind in _NM_PORTS}
            own["yarn.nodemanager.hostname"] = host
            for kind in ("local", "log"):
                own[f"yarn.nodemanager.{kind}-dirs"] = str(
                    self.home / name / ("logs" if kind == "log" else kind)
                )
            self._write_settings(f"conf-{name}", shared | own)
            self.node_managers.append(self._daemon(name, java, f"conf-{name}", "NodeManager"))

    def _write_settings(self, name: str, yarn: Mapping[str, str]) -> None:
        folder = self.home / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self.home / "tmp")}
        queues = "yarn.scheduler.capacity"
        capacity = {
            f"{queues}.maximum-am-resource-percent": "1.0",
            f"{queues}.root.queues": "default",
            f"{queues}.root.default.capacity": "100",
        }
        if self._acls:  # a queue's ACLs are open to all unless its parents' are restricted
            capacity |= {
                f"{queues}.root.acl_submit_applications": self.user,
                f"{queues}.root.acl_administer_queue": "nobody-is-administrator",
            }
        for file, entries in (("core-site", core), ("yarn-site", yarn), ("capacity-scheduler", capacity)):
            rows = "".join(
                f"<property><name>{key}</name><value>{escape(value)}</value></property>\n"
                for key, value in entries.items()
            )
            (folder / f"{file}.xml").write_text(f"<configuration>\n{rows}</configuration>\n")
        (folder / "log4j2.xml").write_text(_LOG4J)

    def _daemon(self, name: str, java: Path, settings: str, main_class: str) -> YarnDaemon:
        folder = self.home / settings
        classpath = os.pathsep.join(map(str, (folder, *yarn_classpath())))
        command = [str(java), *QUICK_START, process_mark(self.home), "-cp", classpath]
        command += [f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}"]
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "AIRFLOW"))
        }
        env |= {
            **environment_mark(self.home),
            "HADOOP_CONF_DIR": str(folder),
            "JAVA_HOME": str(java.resolve().parent.parent),
        }
        main = f"{_SERVER}.{main_class.lower()}.{main_class}"
        return YarnDaemon(name, [*command, main], env, self.home / f"{name}.log")


def kill(pid: int) -> None:
    """SIGKILL a container's process; no-op if it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _environment(pid: int) -> str:
    with suppress(OSError):
        return "\0" + Path(f"/proc/{pid}/environ").read_text(errors="replace")
    return ""
