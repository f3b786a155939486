from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from airflow_eos.compat import AirflowNotFoundException
from airflow_eos.exceptions import ConfigurationError, RunFailed, SparkUnavailable
from airflow_eos.hooks import spark_driver
from airflow_eos.operators.retriable import is_final
from airflow_eos.operators.spark_session import TaskSession, spark_settings
from airflow_eos.spark_host import jvm, local_session
from tests.unit.airflow.fakes import FakeSession

CLASSIC = {"spark.ui.showConsoleProgress": "false", "spark.serializer.objectStreamReset": "4"}
PRIVATE = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
LOCAL = {**CLASSIC, **PRIVATE, "spark.python.unix.domain.socket.enabled": "true"}


def settings(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], **connection: Any) -> dict[str, str]:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps(connection))
    return spark_settings("spark", "app", config)


def test_without_a_connection_spark_is_local() -> None:
    """It uses this process, all cores, and Python workers on Unix sockets."""
    assert spark_settings(None, "app", {}) == {"spark.app.name": "app", "spark.master": "local[*]", **LOCAL}


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o007, 0o020])
def test_sockets_that_others_could_use_are_not_used(umask: int) -> None:
    """PySpark's workers require no secret on Unix sockets: any user who may write to the file can connect."""
    before = os.umask(umask)
    try:
        conf = spark_settings(None, "app", {})
    finally:
        os.umask(before)
    assert conf == {"spark.app.name": "app", "spark.master": "local[*]", **CLASSIC, **PRIVATE}


def test_local_settings_are_defaults() -> None:
    """The author may choose TCP."""
    tcp = {"spark.python.unix.domain.socket.enabled": "false"}
    assert spark_settings(None, "app", tcp) == {
        "spark.app.name": "app",
        "spark.master": "local[*]",
        **CLASSIC,
        **PRIVATE,
        **tcp,
    }


@pytest.mark.parametrize("name", PRIVATE)
def test_an_author_may_open_what_is_private(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In the task's own settings or in the connection's extra."""
    assert spark_settings(None, "app", {name: "theirs"})[name] == "theirs"
    conf = settings(monkeypatch, {}, conn_type="spark", host="local[2]", extra={name: "theirs"})
    assert conf[name] == "theirs"


@pytest.mark.parametrize("master", ["spark://m:7077", "yarn", "k8s://https://m", "local-cluster[1,1,1024]"])
def test_the_driver_of_a_cluster_is_reached_by_its_executors(master: str) -> None:
    """Our settings change neither its address nor its secret."""
    assert not PRIVATE.keys() & spark_settings(None, "app", {"spark.master": master}).keys()


def test_standalone_master_comes_from_host_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host, port and extra of the connection are used like in PySparkOperator."""
    conf = settings(
        monkeypatch, {}, conn_type="spark", host="spark://m", port=7077, extra={"spark.executor.cores": 2}
    )
    assert conf == {
        "spark.app.name": "app",
        "spark.master": "spark://m:7077",
        "spark.executor.cores": "2",
        **CLASSIC,
    }


def test_spark_connect_address_is_the_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spark_connect connection sets spark.remote and no master; its token is not shown."""
    conf = settings(
        monkeypatch, {}, conn_type="spark_connect", host="sc://gateway", port=15002, password="hush-token"
    )
    assert conf["spark.remote"].startswith("sc://gateway:15002/;")
    assert not {"spark.master", *CLASSIC}.intersection(conf)
    assert TaskSession(conf).address == "sc://gateway:15002/"


def test_task_settings_win_over_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """config_kwargs may replace the connection's settings, including its address."""
    conf = settings(
        monkeypatch,
        {"spark.master": "local[1]", "spark.a": 2},
        conn_type="spark",
        host="spark://m",
        extra={"spark.a": 1},
    )
    assert conf == {"spark.app.name": "app", "spark.master": "local[1]", "spark.a": "2", **LOCAL}


def test_connection_without_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master needs an address."""
    with pytest.raises(ConfigurationError, match="'spark' names no host"):
        settings(monkeypatch, {}, conn_type="spark")


def test_missing_connection_may_be_there_next_time() -> None:
    """Airflow says that it is not defined, also where its API server or a secrets backend was away."""
    with pytest.raises(AirflowNotFoundException, match=r"'absent'\. If its API server .* another try"):
        spark_settings("absent", "app", {})


class Builder:
    """Replaces ``SparkSession.builder``; counts the sessions made."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def config(self, map: dict[str, str]) -> Builder:  # noqa: A002 - Spark's name
        self.map = map
        return self

    def getOrCreate(self) -> Any:  # noqa: N802 - Spark's name
        return self.session


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    from pyspark.sql import SparkSession

    session = FakeSession()
    monkeypatch.setattr(SparkSession, "builder", Builder(session))
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(local_session, "_start_jvm", mock.Mock())
    monkeypatch.setattr(local_session, "_start_worker", mock.Mock(return_value=None))
    monkeypatch.setattr(local_session, "_keep_others_out", mock.Mock())
    monkeypatch.setattr("airflow_eos.operators.spark_session.wait_for_server", lambda *_: None)
    return session


def test_started_session_is_stopped_once(spark: FakeSession) -> None:
    """A session that the task started is stopped, and local workers use Airflow's Python."""
    session = TaskSession({"spark.master": "local[2]"})
    assert session.start(1000) is spark
    assert os.environ.pop("PYSPARK_PYTHON")
    session.stop()
    session.stop()
    assert spark.stops == 1


def test_session_of_somebody_else_is_left_running(
    spark: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session from before the task is not stopped."""
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: spark)
    session = TaskSession({"spark.master": "spark://m:7077"})
    assert session.start(1000) is spark
    session.stop()
    assert spark.stops == 0


def test_block_folders_are_reached_without_methods_of_sparkenv(tmp_path: Path) -> None:
    """They name a type that Spark 4.3 lacks: no local session of it started."""
    disk = SimpleNamespace(localDirs=lambda: [SimpleNamespace(getPath=lambda: str(tmp_path))])
    blocks = SimpleNamespace(diskBlockManager=lambda: disk)
    field = SimpleNamespace(setAccessible=lambda _: None, get=lambda _: blocks)
    owner = SimpleNamespace(getDeclaredField={"_env": field, "blockManager": field}.__getitem__)
    field.getType = lambda: owner
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(getClass=lambda: owner)))
    tmp_path.chmod(0o755)
    local_session._keep_others_out(context)
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_failing_stop_does_not_fail_the_task(spark: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that died after the commit must not turn success into failure."""

    def stop() -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(spark, "stop", stop)
    session = TaskSession({"spark.master": "spark://m:7077"})
    session.start(1000)
    session.stop()
    assert session._started is None


def test_a_server_that_is_gone_is_told_of_the_end_once(
    spark: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's client would repeat the request for ten minutes, after the run's end."""
    policies: list[list[object]] = []
    monkeypatch.setattr(spark.client, "set_retry_policies", policies.append)
    session = TaskSession({"spark.remote": "sc://spark.example.com:15002"})
    session.start(1000)
    assert policies == []
    session.stop()
    assert policies == [[]]
    assert spark.stops == 1


@pytest.mark.parametrize(
    ("jars", "shown"),
    [({}, False), ({"spark.jars": "/a.jar"}, False), ({"spark.jars": "s3a://b/a.jar"}, True)],
)
def test_secrets_are_on_the_command_line_of_the_jvm_only_where_it_fetches_files(
    monkeypatch: pytest.MonkeyPatch, jars: dict[str, str], shown: bool
) -> None:
    """All users of a host can read it; spark-submit fetches jars before it can get a secret otherwise."""
    from pyspark import SparkContext

    started = mock.Mock()
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", started)
    secrets = {"spark.hadoop.fs.s3a.secret.key": "geheim", "spark.authenticate.secret": "geheim"}
    local_session._start_jvm({**IN_PROCESS, **jars, **secrets})
    assert dict(started.call_args.kwargs["conf"].getAll()) == {
        **IN_PROCESS,
        **jars,
        **(secrets if shown else {}),
    }


@pytest.mark.usefixtures("spark")
def test_a_user_without_a_name_is_named_where_spark_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with an arbitrary user id: Java gets its home from /etc/passwd, and YARN a name."""
    ended = RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    monkeypatch.setattr(local_session.LocalSession, "start", mock.Mock(side_effect=ended))
    has_no_name = "has no entry in /etc/passwd"
    with pytest.raises(RunFailed, match="its last lines say why; nothing was read"):
        TaskSession(IN_PROCESS).start(1000)
    monkeypatch.setattr(spark_driver.pwd, "getpwuid", mock.Mock(side_effect=KeyError("uid not found")))
    with pytest.raises(RunFailed, match=f"its last lines say why; user id .*{has_no_name}"):
        TaskSession(IN_PROCESS).start(1000)
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME", "HADOOP_USER_NAME"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigurationError, match=has_no_name):
        spark_driver.name_yarn_user(mock.Mock(_proxy_user=None, _env={}))


IN_PROCESS = {"spark.master": "local[2]"}
DAEMON = "spark.python.daemon.module"


@pytest.mark.parametrize(
    ("given", "is_same", "daemon"),
    [
        (IN_PROCESS, True, "airflow_eos.spark_host.worker_daemon"),
        (IN_PROCESS, False, None),
        ({**IN_PROCESS, DAEMON: "pyspark.daemon"}, True, "pyspark.daemon"),
        ({**IN_PROCESS, "spark.submit.pyFiles": "theirs.zip"}, True, None),
        ({"spark.master": "local-cluster[1,1,1024]"}, True, None),
        ({"spark.remote": "sc://m"}, True, None),
    ],
)
def test_workers_of_a_local_session_fork_with_their_imports_done(
    spark: FakeSession,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    is_same: bool,
    daemon: str | None,
) -> None:
    """If its tasks' Python finds the same version of this package, and the author has not turned it off."""
    from pyspark.sql import SparkSession

    ask = mock.Mock(return_value=mock.Mock(result=lambda: is_same))
    monkeypatch.setattr("airflow_eos.spark.local_python.ask", ask)
    monkeypatch.setenv("PYTHONPATH", "inherited")
    builder: Any = SparkSession.builder
    TaskSession({**given, "spark.executorEnv.PYTHONPATH": "theirs"}).start(1000)
    assert builder.map.get(DAEMON) == daemon
    if ask.called:
        assert ask.call_args == mock.call(sys.executable, f"theirs{os.pathsep}inherited")


@pytest.mark.parametrize(
    ("given", "variable", "is_early"),
    [
        (IN_PROCESS, None, True),
        ({**IN_PROCESS, local_session.SWITCH: "false"}, None, False),
        ({**IN_PROCESS, "spark.submit.pyFiles": "theirs.zip"}, None, False),
        ({**IN_PROCESS, "spark.api.mode": "connect"}, None, False),
        (IN_PROCESS, "SPARK_API_MODE", False),
        ({"spark.master": "spark://m:7077"}, None, False),
        ({"spark.remote": "sc://m"}, None, False),
    ],
)
@pytest.mark.usefixtures("spark")
def test_a_worker_starts_early_where_it_will_serve_the_tasks(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], variable: str | None, is_early: bool
) -> None:
    """Not if Spark Connect may be used: its client has no context, and encrypts files."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    ask = mock.Mock(return_value=mock.Mock(result=lambda: True))
    monkeypatch.setattr("airflow_eos.spark.local_python.ask", ask)
    for name in local_session._CONNECT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "connect")
    TaskSession(given).start(1000)
    assert local_session._start_worker.called is is_early  # type: ignore[attr-defined]
    is_connect = variable is not None or "spark.api.mode" in given
    assert ("spark.io.encryption.enabled" in builder.map) is is_connect
    assert local_session._keep_others_out.called is not (is_connect or "spark.remote" in given)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "set_up"),
    [
        ({"spark.master": "local[2]"}, True),
        ({"spark.master": "local[2]", jvm.OPTIONS: "-Xss4m"}, False),
        ({"spark.master": "spark://m:7077"}, False),
        ({"spark.remote": "sc://m"}, False),
    ],
)
def test_a_jvm_of_our_own_is_set_up_for_the_run(
    spark: FakeSession, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], set_up: bool
) -> None:
    """Not if other options were given, and not on a cluster."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    monkeypatch.delenv(jvm.OPTIONS_VARIABLE, raising=False)
    TaskSession(given).start(1000)
    assert ("-XX:TieredStopAtLevel=1" in builder.map.get(jvm.OPTIONS, "")) is set_up
    TaskSession(given).start(10_000_000)
    assert "-XX:TieredStopAtLevel=1" not in builder.map.get(jvm.OPTIONS, "")
    TaskSession(given).start(10_000_000, rows=False)
    assert ("-XX:TieredStopAtLevel=1" in builder.map.get(jvm.OPTIONS, "")) is set_up
    monkeypatch.setenv(jvm.OPTIONS_VARIABLE, "-Xmx2g")
    TaskSession(given).start(1000)
    assert not builder.map.keys() - given.keys() - {DAEMON}


@pytest.mark.parametrize(
    ("host", "extra", "is_refused"),
    [
        ("127.0.0.1", {}, True),
        ("127.0.0.1", {"use_ssl": True}, False),
        ("localhost", {}, False),
        ("spark.example", {}, False),
    ],
)
def test_a_token_goes_where_spark_sends_it(
    monkeypatch: pytest.MonkeyPatch, host: str, extra: dict[str, Any], is_refused: bool
) -> None:
    """To `localhost` unencrypted, to every other host over TLS; the refusal shows no token."""
    given = {"conn_type": "spark_connect", "host": host, "port": 15002, "password": "t0ken", "extra": extra}
    if not is_refused:
        assert "t0ken" in settings(monkeypatch, {}, **given)["spark.remote"]
        return
    with pytest.raises(ConfigurationError, match="the host localhost only") as refused:
        settings(monkeypatch, {}, **given)
    assert "t0ken" not in str(refused.value)


@pytest.mark.parametrize("address", ["sc://", "sc://:15002/;token=t0ken", "sc:///;token=t0ken"])
def test_an_address_without_a_host_is_named(address: str) -> None:
    """Otherwise Spark's clients raise other errors, or, in 4.0, retry for ten minutes."""
    with pytest.raises(ConfigurationError, match="names no host: give sc://HOST:PORT") as raised:
        TaskSession({"spark.remote": address}).start(0)
    assert "t0ken" not in str(raised.value)


@pytest.mark.parametrize(
    ("host", "patience"), [("localhost", "SERVER_PATIENCE"), ("0.0.0.0", "REMOTE_PATIENCE")]
)
def test_a_server_that_is_down_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, host: str, patience: str
) -> None:
    """The log names it during the wait, and so does the final error, which is retried; both without token."""
    monkeypatch.setattr(f"airflow_eos.operators.spark_session.{patience}", 2.0)
    monkeypatch.setattr("airflow_eos.spark.server_wait._LOG_AFTER", 0.1)
    with socket.socket() as held:
        held.bind((host, 0))
        port = held.getsockname()[1]
        session = TaskSession({"spark.remote": f"sc://{host}:{port}/;token=t0ken"})
        with pytest.raises(SparkUnavailable, match=f"no Spark Connect server at {host}:{port}") as down:
            session.start(10)
    waiting = [line for line in caplog.messages if "No Spark Connect server accepts connections" in line]
    assert len(waiting) == 1
    assert f"{host}:{port}: [Errno" in waiting[0]
    assert "t0ken" not in caplog.text
    assert not is_final(down.value)
    assert "t0ken" not in str(down.value)
