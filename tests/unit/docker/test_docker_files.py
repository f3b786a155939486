"""The container files: versions are the tested ones, ports are on loopback, and no file has a password."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from airflow_eos.cli.main import parser
from airflow_eos_testing.cluster import DEFAULT_VERSION
from airflow_eos_testing.ports import free_ports

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
DOCKERFILES = sorted(DOCKER.rglob("Dockerfile"))
OURS = {"airflow": ("apache-airflow", "AIRFLOW_VERSION"), "spark": ("pyspark", "SPARK_VERSION")}
NO_HEALTH = {"airflow-init", "flights"}
"""Services that end by themselves; the file says so at each."""
SECRETS = {
    "POSTGRES_PASSWORD",
    "AIRFLOW_ADMIN_PASSWORD",
    "AIRFLOW_API_SECRET",
    "AIRFLOW_JWT_SECRET",
    "AIRFLOW_FERNET_KEY",
}


def pinned(package):
    """Return the version of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    (version,) = {
        line.split("==")[1].split()[0] for line in lines if re.match(rf"{re.escape(package)}==", line)
    }
    return version


def instructions(path, name):
    """Return the arguments of an instruction, in order; continuation lines are joined."""
    text = re.sub(r"\\\n", " ", path.read_text())
    return re.findall(rf"^{name}\s+(.*)$", text, re.MULTILINE)


def default(value):
    """Return NAME and DEFAULT of ``${NAME:-DEFAULT}``."""
    return re.fullmatch(r"\$\{(\w+):-([^}]*)\}", value).groups()


def dockerfile_of(service):
    """Return the Dockerfile that builds a service, or None."""
    build = service.get("build")
    return (DOCKER / build["context"] / build["dockerfile"]).resolve() if build else None


def words(service):
    """Return every text of a service: values of the environment, command, health check."""
    pending = [service]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        else:
            yield str(item)


@pytest.mark.parametrize("image", OURS)
def test_an_image_has_the_pinned_version(image):
    """Dockerfile and image tag use the version of constraints.txt."""
    package, argument = OURS[image]
    path = DOCKER / image / "Dockerfile"

    assert f"{argument}={pinned(package)}" in instructions(path, "ARG")
    tags = {service["image"] for service in SERVICES.values() if dockerfile_of(service) == path}
    assert tags == {f"localhost/airflow-eos-{image}:{pinned(package)}"}


@pytest.mark.parametrize("image", OURS)
def test_an_image_installs_under_the_constraints(image):
    """Each pip call uses constraints.txt, and packages that it does not cover are pinned there."""
    path = DOCKER / image / "Dockerfile"
    calls = [run for run in instructions(path, "RUN") if "pip install" in run]

    assert len(calls) == 1
    assert all("--constraint /src/constraints.txt" in call and "pip check" in call for call in calls)
    assert any(copied.split()[0] == "constraints.txt" for copied in instructions(path, "COPY"))


def test_packages_of_the_image_are_pinned_by_the_constraints():
    """Database drivers; no version is in two places."""
    lines = (DOCKER / "airflow" / "requirements.txt").read_text().splitlines()
    packages = [line for line in lines if not line.startswith("#")]

    assert packages
    assert all(re.fullmatch(r"[a-z0-9-]+", line) for line in packages)
    constraints = (ROOT / "constraints.txt").read_text()
    assert [line for line in packages if f"\n{line}==" not in constraints] == []


def test_kafka_is_the_version_of_the_tests():
    """The upstream image's name and tag; a variable overrides it."""
    images = {service["image"] for name, service in SERVICES.items() if name.startswith("kafka")}

    assert [default(image) for image in images] == [
        ("KAFKA_IMAGE", f"docker.io/apache/kafka:{DEFAULT_VERSION}")
    ]


def test_client_and_executors_have_one_base():
    """PySpark wants the same minor version of Python on both sides."""
    bases = {
        argument.partition("=")[2]
        for image in OURS
        for argument in instructions(DOCKER / image / "Dockerfile", "ARG")
        if argument.startswith("BASE_IMAGE")
    }
    composed = {
        default(service["build"]["args"]["BASE_IMAGE"]) for service in SERVICES.values() if "build" in service
    }

    assert len(bases) == 1
    assert composed == {("BASE_IMAGE", *bases)}
    assert ":latest" not in str(bases)


@pytest.mark.parametrize("name", SERVICES)
def test_a_published_port_is_on_loopback(name):
    """No other machine on the network reaches a broker or Airflow."""
    for port in SERVICES[name].get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:\$\{\w+:-\d+\}:\d+", port), port
    assert SERVICES[name].get("network_mode") != "host"


UNIT = DOCKER / "airflow-eos-spark-server.service"


def command_of(words):
    """Parse the options of a ``spark-server`` as the command line does."""
    start = words.index("spark-server")
    return parser().parse_args(words[start:])


def test_the_unit_file_keeps_the_command():
    """Its command exists; it knows the JVM's exit code after SIGTERM, and restarts the server."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read(UNIT)
    service = unit["Service"]
    assert command_of(shlex.split(service["ExecStart"])).memory == "2g"
    assert (service["Restart"], service["SuccessExitStatus"]) == ("on-failure", str(128 + signal.SIGTERM))
    assert (service["KillMode"], service["UMask"]) == ("control-group", "0077")
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "verify", str(UNIT)], capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, "")


def test_the_composed_spark_server_is_on_the_loopback_of_a_scheduler():
    """Its tasks find it at localhost, and no other host can; the options are the command's."""
    service = SERVICES["spark-server"]
    assert service["network_mode"] == "service:airflow-scheduler-1"
    assert "ports" not in service
    options = command_of(service["command"])
    assert str(options.port) in service["healthcheck"]["test"][-1]
    assert options.folder.startswith("/home/spark/")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_checked_or_ends(name):
    """Every service that stays up has a health check."""
    health = SERVICES[name]["healthcheck"]

    if name in NO_HEALTH:
        assert health == {"disable": True}
        assert SERVICES[name]["restart"] == "no"
    else:
        assert health["test"][0] == "CMD"
        assert {"interval", "timeout", "retries", "start_period"} <= health.keys()


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_not_root(name):
    """By the Dockerfile's last stage, or by the composition; and it cannot gain privileges."""
    service = SERVICES[name]
    path = dockerfile_of(service)
    user = service.get("user") if path is None else instructions(path, "USER")[-1]

    assert user not in (None, "root", "0")
    assert not str(user).startswith("0:")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_a_dockerfile_takes_its_base_and_drops_root(path):
    """The last USER is effective; base images are arguments, never ``latest``."""
    assert all(base.split()[0] == "${BASE_IMAGE}" for base in instructions(path, "FROM"))
    assert instructions(path, "USER")[-1].split(":")[0] not in ("root", "0")
    text = path.read_text()
    assert text.rindex("\nUSER ") > text.rindex("\nRUN ")
    assert not re.search(r"index-url|trusted-host|https?://|PASSWORD=", text)


@pytest.mark.parametrize("image", OURS)
def test_an_image_is_built_in_stages(image):
    """Pip's cache, sources and settings stay in the first stage."""
    path = DOCKER / image / "Dockerfile"

    assert [base.split(" AS ")[1:] for base in instructions(path, "FROM")] == [["build"], []]
    assert "--mount=type=secret,id=pip" in next(run for run in instructions(path, "RUN") if "pip" in run)


def test_no_password_is_in_the_composition():
    """Whatever has the name of a secret comes from a variable without a default."""
    named = re.compile(r"PASSWORD|SECRET|FERNET_KEY|TOKEN")
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if named.search(key) and not key.endswith("PASSWORDS_FILE"):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), f"{name}: {key}"
        for word in words(service):
            assert not re.search(r"://[^:/$]+:[^$@]+@", word), f"{name}: {word}"
    required = set(re.findall(r"\$\{(\w+):\?", (DOCKER / "compose.yaml").read_text()))
    assert required == SECRETS


def test_every_variable_has_a_default_or_is_required():
    """An unset variable is an error or has a value, never an empty text."""
    text = (DOCKER / "compose.yaml").read_text()

    assert re.findall(r"\$\{\w+\}|\$[A-Za-z]", text) == []


def test_a_volume_of_the_composition_is_declared():
    """Every declared volume is used."""
    used = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", ())
        if not volume.startswith(".")
    }

    assert used == set(COMPOSE["volumes"])


@pytest.mark.parametrize("brokers", ["1", "3"])
def test_ctl_makes_secrets_that_only_the_owner_reads(tmp_path, brokers):
    """Two calls make two sets; three brokers keep three copies."""
    envs = [make_env(tmp_path / str(number), brokers) for number in range(2)]

    for path, values in envs:
        assert path.stat().st_mode & 0o777 == 0o600
        assert values.keys() >= SECRETS
        assert all(len(values[name]) >= 32 for name in SECRETS)
        assert values.get("KAFKA_REPLICATION", "1") == brokers
    assert not [name for name in SECRETS if envs[0][1][name] == envs[1][1][name]]


def test_ctl_takes_one_broker_or_three(tmp_path):
    """Two brokers would have no majority of replicas."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        make_env(tmp_path / "two", "2")

    assert "BROKERS is 1 or 3" in caught.value.stderr


def test_ctl_shows_no_secret(tmp_path):
    """Neither the terminal nor the command line of the tool that it calls has one."""
    folder = tmp_path / "shown"
    path, values = make_env(folder, "1")
    output = (folder / "said").read_text()

    assert "up -d" in output
    assert not [name for name in SECRETS if values[name] in output]
    assert path.exists()


PORTS = sorted(set(re.findall(r"\$\{(\w*PORT\w*):-\d+\}", (DOCKER / "compose.yaml").read_text())))


@pytest.mark.parametrize(
    ("name", "brokers"), [*((variable, "3") for variable in PORTS), ("KAFKA_PORT_1", "1")]
)
def test_ctl_says_which_port_is_in_use(tmp_path, name, brokers):
    """Before anything is created: compose would report it after everything else has started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(subprocess.CalledProcessError) as caught:
            make_env(tmp_path / "taken", brokers, **{name: str(port)})

    assert f"port {port} is in use" in caught.value.stderr
    assert f"{name}=" in caught.value.stderr
    assert not (tmp_path / "taken" / ".env").exists()


def test_ctl_wants_no_port_of_brokers_that_do_not_start(tmp_path):
    """One broker has one port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path, _ = make_env(tmp_path / "one", "1", KAFKA_PORT_2=str(taken.getsockname()[1]))

    assert path.exists()


def make_env(folder, brokers, **ports):
    """Run ``ctl up`` in a copy, with a command that only echoes; return the file it made."""
    folder.mkdir()
    (folder / "ctl").write_text((DOCKER / "ctl").read_text())
    (folder / "ctl").chmod(0o755)
    free = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    done = subprocess.run(
        [folder / "ctl", "up"],
        env={"PATH": "/usr/bin:/bin", "COMPOSE": "echo", "BROKERS": brokers, **free, **ports},
        capture_output=True,
        text=True,
        check=True,
    )
    (folder / "said").write_text(done.stdout + done.stderr)
    path = folder / ".env"
    return path, dict(line.split("=", 1) for line in path.read_text().splitlines())


def test_the_build_context_holds_no_secret():
    """It has only what the Dockerfiles copy."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]

    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for image in OURS
        for copy in instructions(DOCKER / image / "Dockerfile", "COPY")
        if not copy.startswith("--from")
        for source in copy.split()[:-1]
    }
    assert {source for source in copied if not source.startswith("docker/")} == let_in - {"docker/airflow"}
    assert all(
        source.startswith("docker/airflow/") for source in copied - let_in if source.startswith("docker/")
    )
    assert "docker/.env*" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_policy_gives_the_cluster_to_runs_without_a_connection():
    """A Dag's own choice stays, and other operators are not changed."""
    source = (DOCKER / "airflow" / "airflow_local_settings.py").read_text()
    names: dict = {}
    exec(compile(ast.parse(source), "airflow_local_settings.py", "exec"), names)

    class ReadProcessWriteOperator:
        conn_id = None

    class Other:
        conn_id = None

    class Decorated(ReadProcessWriteOperator):
        pass

    plain, chosen, other, decorated = ReadProcessWriteOperator(), Decorated(), Other(), Decorated()
    chosen.conn_id = "spark_own"
    for task in (plain, chosen, other, decorated):
        names["task_policy"](task)

    assert (plain.conn_id, chosen.conn_id, other.conn_id) == ("spark_cluster", "spark_own", None)
    assert decorated.conn_id == plain.conn_id
    assert f"AIRFLOW_CONN_{plain.conn_id.upper()}" in SERVICES["airflow-scheduler-1"]["environment"]


def test_upstream_images_can_be_given_by_digest():
    """Each is a variable of the composition; docs list it with its default tag."""
    images = [service["image"] for service in SERVICES.values() if dockerfile_of(service) is None]
    bases = [service["build"]["args"]["BASE_IMAGE"] for service in SERVICES.values() if "build" in service]
    readme = (DOCKER / "README.md").read_text()
    for variable, image in map(default, {*images, *bases}):
        name, _, tag = image.rpartition(":")
        assert f"export {variable}={name}@$(digest {name}:{tag})" in readme
    for path in DOCKERFILES:
        if path.parent.name in OURS:
            bases_of_stages = {line.split()[0] for line in instructions(path, "FROM")}
            assert bases_of_stages == {"${BASE_IMAGE}"}, path
