"""Polls and kills a Spark driver that runs on a cluster."""

from __future__ import annotations

import getpass
import os
import pwd
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import requests
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from requests.auth import AuthBase

from airflow_eos.exceptions import ConfigurationError

Backend = Literal["standalone", "yarn", "kubernetes"]

_TIMEOUT = 30.0
_LEAST = 0.1  # seconds: requests refuses a time-out of 0
_RUNNING: dict[str, frozenset[str]] = {
    # UNKNOWN: a recovering standalone master; RELAUNCHING: --supervise restarts the driver.
    "standalone": frozenset({"SUBMITTED", "RUNNING", "RELAUNCHING", "UNKNOWN"}),
    "yarn": frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"}),
    "kubernetes": frozenset({"PENDING", "RUNNING", "UNKNOWN"}),
}
_NOT_LEADING = "in ALIVE state"  # the condition of a leading master
# Beginning of the provider's text for a resource manager that has restarted; the rest varies.
_YARN_UNKNOWN = "YARN RM REST API returned HTTP 404 for application "
_SUCCEEDED = frozenset({"FINISHED", "SUCCEEDED"})


class YarnUser(AuthBase):
    """Sends the user name to a resource manager with simple authentication.

    Without it the user is anonymous, and may not kill applications if YARN has access control lists.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the name to the address."""
        request.prepare_url(str(request.url), {"user.name": self.name})
        return request


def name_yarn_user(hook: Any, user: str | None = None) -> str:
    """Let the hook send the user name to YARN, unless it authenticates in another way; return the name.

    :param user: default: the user as whom the hook submits.
    """
    user = (
        user
        or hook._proxy_user  # noqa: SLF001 - as the provider's own operators do
        or (hook._env or {}).get("HADOOP_USER_NAME")  # noqa: SLF001
        or os.environ.get("HADOOP_USER_NAME")
        or _own_name()
    )
    kerberos = hook._connection.get("keytab") and hook._connection.get("principal")  # noqa: SLF001
    if hook._yarn_rm_auth is None and not kerberos:  # noqa: SLF001
        hook._yarn_rm_auth = YarnUser(user)  # noqa: SLF001
    return str(user)


def nameless_user() -> str:
    """Return an error text if this process's user has no name, which Java and Hadoop need; else empty."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return f"user id {os.getuid()} of this process has no entry in /etc/passwd, which Spark needs"
    return ""


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # the second from Python 3.13 on
        raise ConfigurationError(f"{nameless_user()}: add one, as its image's entry point can") from error


@dataclass(frozen=True, eq=False, repr=False)
class SparkDriver:
    """Polls or kills a driver through its cluster manager, with the connection of ``SparkSubmitHook``.

    The status shows whether the process is running. Only the ledger shows whether its run is committed.

    :param backend: ``standalone`` (the master's REST server), ``yarn`` (the resource manager's, connection
        extra ``yarn_resourcemanager_webapp_address``) or ``kubernetes``.
    :param driver_id: submission id, application id, or ``<namespace>:<driver pod>``.
    :param conn_id: Spark connection.
    :param hook: hook of the submitting operator, with its parameters besides the connection.
    :param user: YARN's user of the application with simple authentication; default: the hook's, or this
        process's.
    """

    backend: Backend
    driver_id: str
    conn_id: str = "spark_default"
    hook: SparkSubmitHook | None = None
    user: str | None = None

    def __post_init__(self) -> None:
        if self.backend not in _RUNNING:
            raise ValueError(f"backend must be one of {', '.join(sorted(_RUNNING))}, got {self.backend!r}")

    def status(self) -> str:
        """Return the driver's state as the cluster manager names it; ``NOT_FOUND`` for an unknown driver.

        :raises Exception: the cluster manager could not be reached.
        """
        return self._tracker.status()

    def kill(self, timeout: float = _TIMEOUT) -> None:
        """Kill the driver.

        :param timeout: seconds, for all masters together.
        :raises Exception: the cluster manager could not be reached, or refused.
        """
        self._tracker.kill(timeout)

    def is_running(self, status: str) -> bool:
        """Return whether the driver may still do something."""
        return status.upper() in _RUNNING[self.backend]

    @staticmethod
    def succeeded(status: str) -> bool:
        """Return whether the driver ended without an error."""
        return status.upper() in _SUCCEEDED

    @cached_property
    def _tracker(self) -> _Standalone | _Yarn | _Pod:
        if self.backend == "kubernetes":
            return _Pod(self.driver_id)
        hook = self.hook or SparkSubmitHook(
            conn_id=self.conn_id, deploy_mode="cluster", yarn_track_via_rm_api=True
        )
        if self.backend == "yarn":
            name_yarn_user(hook, self.user)
            return _Yarn(hook, self.driver_id)
        return _Standalone(hook, self.driver_id)


class _Standalone:
    """https://spark.apache.org/docs/latest/spark-standalone.html#rest-api."""

    def __init__(self, hook: Any, driver_id: str) -> None:
        connection = hook._connection  # noqa: SLF001 - as the provider's own operator does
        masters = connection["master"].replace("spark://", "").split(",")
        scheme, port = connection.get("rest_scheme", "http"), connection.get("rest_port", 6066)
        self._bases = [
            f"{scheme}://{master.strip().rsplit(':', 1)[0]}:{port}/v1/submissions" for master in masters
        ]
        self._driver_id = driver_id

    def status(self) -> str:
        answer = self._ask("GET", "status", _TIMEOUT * len(self._bases))
        return str(answer["driverState"]) if answer["success"] else "NOT_FOUND"

    def kill(self, timeout: float) -> None:
        answer = self._ask("POST", "kill", timeout)
        if not answer["success"]:
            raise RuntimeError(f"driver {self._driver_id} was not killed: {answer.get('message')}")

    def _ask(self, method: str, endpoint: str, timeout: float) -> dict[str, Any]:
        """Ask one master after the other: in a group of masters only the leader knows the driver.

        :param timeout: seconds for all. Each gets its share of the rest, so that one that hangs leaves time
            for the next.

        A standby or recovering master answers, too: with HTTP 200 and a refusal that says nothing about the
        driver. The refusal of a leading master is returned only if no master succeeds.
        """
        refusal: dict[str, Any] | None = None
        failure: Exception | None = None
        deadline = time.monotonic() + timeout
        for tried, base in enumerate(self._bases):
            share = max(deadline - time.monotonic(), _LEAST) / (len(self._bases) - tried)
            try:
                answer = requests.request(method, f"{base}/{endpoint}/{self._driver_id}", timeout=share)
                answer.raise_for_status()
                answered = {"success": False, **answer.json()}
            except (requests.RequestException, ValueError) as error:
                failure = error
                continue
            if answered["success"]:
                return answered
            if _NOT_LEADING in str(answered.get("message")):
                failure = RuntimeError(f"{base}: {answered['message']}")
            else:
                refusal = answered
        if refusal is not None:
            return refusal
        assert failure is not None
        raise failure


class _Yarn:
    """https://hadoop.apache.org/docs/stable/hadoop-yarn/hadoop-yarn-site/ResourceManagerRest.html."""

    def __init__(self, hook: Any, driver_id: str) -> None:
        self._hook = hook
        self._driver_id = driver_id

    def status(self) -> str:
        try:
            return str(self._hook.query_yarn_application_status(self._driver_id))
        except RuntimeError as error:
            if str(error).startswith(_YARN_UNKNOWN):
                return "NOT_FOUND"
            raise

    def kill(self, timeout: float) -> None:
        hook = self._hook
        # The provider's own request logs a refusal like a success, and has no time-out parameter.
        url = f"{hook._get_yarn_rm_base_url()}/ws/v1/cluster/apps/{self._driver_id}/state"  # noqa: SLF001
        auth = hook._resolved_yarn_rm_auth  # noqa: SLF001
        answer = requests.put(url, json={"state": "KILLED"}, auth=auth, timeout=max(timeout, _LEAST))
        if not answer.ok:
            reply = f"HTTP {answer.status_code}: {answer.text[:200]}"
            raise RuntimeError(f"application {self._driver_id} was not killed: {reply}")


class _Pod:
    """The driver pod of Spark on Kubernetes."""

    def __init__(self, driver_id: str) -> None:
        self._namespace, colon, self._name = driver_id.partition(":")
        if not colon:
            raise ValueError(f"a driver on Kubernetes is '<namespace>:<pod>', got {driver_id!r}")

    def status(self) -> str:
        kube_client = self._kube_client()
        try:
            pod = kube_client.get_kube_client().read_namespaced_pod(self._name, self._namespace)
        except kube_client.ApiException as error:
            if error.status == requests.codes.not_found:
                return "NOT_FOUND"
            raise
        return str(pod.status.phase or "Pending")

    def kill(self, timeout: float) -> None:
        kube_client = self._kube_client()
        try:
            kube_client.get_kube_client().delete_namespaced_pod(
                self._name, self._namespace, _request_timeout=timeout
            )
        except kube_client.ApiException as error:
            if error.status != requests.codes.not_found:
                raise

    @staticmethod
    def _kube_client() -> Any:
        try:
            from airflow.providers.cncf.kubernetes import kube_client
        except ImportError as error:
            raise RuntimeError(
                "a driver on Kubernetes needs the package apache-airflow-providers-cncf-kubernetes"
            ) from error
        return kube_client
