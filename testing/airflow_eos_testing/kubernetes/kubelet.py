"""A kubelet that runs the containers of Spark's pods as processes, without images or pod networks.

It handles a container's first argument, ``driver`` or ``executor``, as Spark's image does. Each pod has its
own address within 127/8. Mount paths are replaced with folders of the pod; service names are in a hosts file
that the JVMs read. Linux only.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos_testing.java import find_java
from airflow_eos_testing.kubernetes.api_server import NAMESPACE
from airflow_eos_testing.ports import HOST
from airflow_eos_testing.watchdog import Watchdog, environment_mark, processes_with

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from airflow_eos_testing.kubernetes.api_server import KubernetesApi

log = logging.getLogger(__name__)

_POLL = 0.2
_NODE = "here"
_LAST_ADDRESS = 250
_EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


@dataclass
class _Pod:
    """A pod that was started."""

    name: str
    address: str
    mark: dict[str, str]
    process: subprocess.Popen[bytes]
    reported: bool = False

    def processes(self) -> list[int]:
        """Return the process ids of the container, with its descendants."""
        ((name, value),) = self.mark.items()
        return processes_with(f"{name}={value}")

    def kill(self) -> None:
        """SIGKILL all of its processes."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.process.wait(30)


@dataclass
class Kubelet:
    """Run the pods of the namespace for the duration of a ``with`` block; no process and no file is left.

    :param api: the API server.
    :param image: environment variables of every container.
    """

    api: KubernetesApi
    image: Mapping[str, str]
    home: Path = field(init=False)
    _pods: dict[str, _Pod] = field(init=False, default_factory=dict)

    def __enter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix="airflow-eos-kubelet-"))
        self._watchdog = Watchdog(self.home)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="kubelet")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join(60)
        for pod in self._pods.values():
            pod.kill()
        self._watchdog.close()

    def processes(self, pod: str) -> list[int]:
        """Return the process ids of a pod's container, with its descendants; empty for an unknown pod."""
        return [pid for each in list(self._pods.values()) if each.name == pod for pid in each.processes()]

    def logs(self) -> str:
        """Return the output of all containers."""
        files = sorted(self.home.glob("*/log"))
        return "\n".join(f"--- {path.parent.name}\n{path.read_text(errors='replace')}" for path in files)

    def _run(self) -> None:
        while not self._ends.wait(_POLL):
            self._try_to_sync()

    def _try_to_sync(self) -> None:
        try:
            self._sync()
        except (urllib.error.URLError, TimeoutError) as error:  # objects change concurrently
            log.warning("The kubelet tries again: %s %s", getattr(error, "url", ""), error)

    def _sync(self) -> None:
        """Reconcile the processes with the API server's pods, and report their status."""
        pods = {pod["metadata"]["uid"]: pod for pod in self.api.objects("pods")}
        self._write_hosts(pods.values())
        for uid, pod in pods.items():
            running = self._pods.get(uid)
            if "deletionTimestamp" in pod["metadata"]:
                if running is not None:
                    running.kill()
                path = f"pods/{pod['metadata']['name']}"
                self.api.request("DELETE", path, {"gracePeriodSeconds": 0})
            elif running is None:
                if pod["status"]["phase"] == "Pending":
                    self._start(uid, pod)
            elif not running.reported and running.process.poll() is not None:
                self._report_end(running, pod)

    def _write_hosts(self, pods: Any) -> None:
        lines = [f"{HOST} localhost {socket.gethostname()}"]
        started = [
            (pod["metadata"], self._pods[uid])
            for pod in pods
            if (uid := pod["metadata"]["uid"]) in self._pods
        ]
        for service in self.api.objects("services"):
            selector = (service["spec"].get("selector") or {}).items()
            for metadata, pod in started:
                if selector and selector <= metadata.get("labels", {}).items():
                    lines.append(f"{pod.address} {service['metadata']['name']}.{NAMESPACE}.svc")
        new = self.home / "hosts.new"
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.home / "hosts")

    def _start(self, uid: str, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": _NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        if "nodeName" not in pod["spec"]:
            self.api.request("POST", f"pods/{name}/binding", binding)
        address = f"127.0.1.{len(self._pods) % _LAST_ADDRESS + 1}"
        folder = self.home / name
        folder.mkdir(exist_ok=True)
        mark = {"AIRFLOW_EOS_POD": uid}
        (container,) = pod["spec"]["containers"]
        paths = self._mounted(folder, pod["spec"], container)
        given = {each["name"]: _value(each, name, address) for each in container.get("env", [])}
        environment = {
            **self.image,
            **{key: _replaced(value, paths) for key, value in given.items()},
            "SPARK_LOCAL_IP": address,
            "JDK_JAVA_OPTIONS": f"-Djdk.net.hosts.file={self.home / 'hosts'}",
            **environment_mark(self.home),
            **mark,
        }
        arguments = [_replaced(each, paths) for each in container["args"]]
        with (folder / "log").open("wb") as output:
            process = subprocess.Popen(
                _command(arguments, environment),
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._pods[uid] = _Pod(name, address, mark, process)
        ips = {"podIP": address, "podIPs": [{"ip": address}]}
        self._report(pod, "Running", {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}}, **ips)

    def _mounted(self, folder: Path, spec: dict[str, Any], container: dict[str, Any]) -> dict[str, str]:
        """Write the pod's mounts into its folder; return the folders, by the paths in the container."""
        sources = {volume["name"]: volume for volume in spec.get("volumes", [])}
        paths = {}
        for mount in container.get("volumeMounts", []):
            place = folder / mount["name"]
            place.mkdir(exist_ok=True)
            source = sources[mount["name"]].get("configMap")
            if source is not None:
                content = self.api.request("GET", f"configmaps/{source['name']}").get("data", {})
                for name, text in content.items():
                    (place / name).write_text(text)
            paths[mount["mountPath"]] = str(place)
        return paths

    def _report_end(self, running: _Pod, pod: dict[str, Any]) -> None:
        code = running.process.returncode
        running.reported = True
        state = {"terminated": {"exitCode": code if code >= 0 else 128 - code, "reason": "ended"}}
        self._report(pod, "Failed" if code else "Succeeded", state)

    def _report(self, pod: dict[str, Any], phase: str, state: dict[str, Any], **others: Any) -> None:
        (container,) = pod["spec"]["containers"]
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": phase == "Running",
            "restartCount": 0,
            "state": state,
        }
        content = {"status": {"phase": phase, "containerStatuses": [status], **others}}
        self.api.request("PATCH", f"pods/{pod['metadata']['name']}/status", content)


def _value(entry: dict[str, Any], name: str, address: str) -> str:
    """Return the value of a container's environment variable."""
    if "valueFrom" in entry:
        return {"status.podIP": address, "metadata.name": name}[entry["valueFrom"]["fieldRef"]["fieldPath"]]
    return str(entry.get("value", ""))


def _replaced(text: str, paths: Mapping[str, str]) -> str:
    for path, place in paths.items():
        text = text.replace(path, place)
    return text


def _command(arguments: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that Spark's image runs for the arguments of its entry point."""
    role, *others = arguments
    home = Path(environment["SPARK_HOME"])
    if role == "driver":
        address = environment["SPARK_DRIVER_BIND_ADDRESS"]
        conf = ["--conf", f"spark.driver.bindAddress={address}"]
        submit = str(home / "bin" / "spark-submit")
        return [submit, *conf, "--deploy-mode", "client", *others]
    options = [value for key, value in environment.items() if key.startswith("SPARK_JAVA_OPT_")]
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    java = [str(find_java()), *options, f"-Xms{memory}", f"-Xmx{memory}"]
    classpath = f"{environment.get('SPARK_CONF_DIR', '')}{os.pathsep}{home / 'jars' / '*'}"
    facts = {
        "driver-url": "SPARK_DRIVER_URL",
        "executor-id": "SPARK_EXECUTOR_ID",
        "cores": "SPARK_EXECUTOR_CORES",
        "app-id": "SPARK_APPLICATION_ID",
        "hostname": "SPARK_EXECUTOR_POD_IP",
        "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "podName": "SPARK_EXECUTOR_POD_NAME",
    }
    identity = [part for option, name in facts.items() for part in (f"--{option}", environment[name])]
    return [*java, "-cp", classpath, _EXECUTOR, *identity]


def image() -> dict[str, str]:
    """Return the environment of a container with this Python, its packages, and PySpark's Spark."""
    import pyspark

    kept = ("HOME", "LANG", "PATH", "JAVA_HOME", "PYTHONPATH")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "SPARK_HOME": str(Path(str(pyspark.__file__)).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
