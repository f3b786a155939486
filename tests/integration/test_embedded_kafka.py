"""Embedded Kafka: real brokers that a test can create and break, and that always go away."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import ConfigResource, ResourceType
from kafka.protocol.consumer import ListOffsetsRequest

from airflow_eos.exceptions import AuthorizationFailed, UnknownTopic
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos_testing import EmbeddedKafka, class_data, cluster, count_records, jars, launch, read_topic
from airflow_eos_testing.exceptions import EmbeddedKafkaError
from airflow_eos_testing.watchdog import marked_processes
from tests.support.cases import rest_in_chaos
from tests.support.patience import wait_until

QUIET = {"log_level": 0}


@pytest.fixture(scope="module")
def kafka():
    with EmbeddedKafka() as embedded:
        yield embedded


@pytest.fixture(scope="module")
def three():
    # A killed broker may register again, and the others take over, when its session ends: 9 s by default.
    quick = {"broker.session.timeout.ms": "4000", "broker.heartbeat.interval.ms": "500"}
    with EmbeddedKafka(brokers=3, broker_config=quick) as embedded:
        yield embedded


def producer(kafka, **settings):
    return Producer({**kafka.client_config(), **QUIET, **settings})


def produce(kafka, topic, count, **settings):
    client = producer(kafka, **settings)
    for number in range(count):
        client.produce(topic, value=b"%d" % number)
    assert client.flush(60) == 0


def processes_of(home):
    """Return every process that has the folder in an argument."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                arguments = (entry / "cmdline").read_bytes()
                if str(home).encode() in arguments:
                    pids.append(int(entry.name))
    return pids


def is_running(pid):
    """Whether a process exists and is not a zombie that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


# -- one broker ----------------------------------------------------------------------------------------------


def test_a_created_topic_can_be_written_and_read_at_once(kafka):
    """create_topic returns when every partition has a leader: nothing after it needs a retry."""
    kafka.create_topic("at-once", partitions=8)
    client = producer(kafka, retries=0)
    for partition in range(8):
        client.produce("at-once", value=b"x", partition=partition)
    assert client.flush(30) == 0

    assert [record.partition for record in read_topic(kafka.bootstrap_servers, "at-once")] == list(range(8))


def test_the_leaders_of_a_created_topic_serve_it(kafka):
    """A broker lists a topic some milliseconds before it leads it: the first requests still succeed."""
    codes = Counter()
    with BrokerConnections(kafka.client_config()) as connections:
        for number in range(30):
            topic = kafka.create_topic(f"led-{number}", partitions=2)
            topic_class = ListOffsetsRequest.ListOffsetsTopic
            parts = [
                topic_class.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1)
                for index in (0, 1)
            ]
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,
                topics=[topic_class(name=topic, partitions=parts)],
                min_version=2,
                max_version=8,
            )
            answer = connections.wait(connections.send(request, kafka.brokers[0].node_id))
            codes.update(part.error_code for part in answer.topics[0].partitions)
    assert codes == {0: 60}


def test_a_topic_has_the_settings_it_was_created_with(kafka):
    """Topic settings reach the broker."""
    kafka.create_topic("compacted", config={"cleanup.policy": "compact"})

    resource = ConfigResource(ResourceType.TOPIC, "compacted")
    settings = kafka.admin().describe_configs([resource])[resource].result()
    assert settings["cleanup.policy"].value == "compact"


def test_creating_a_topic_twice_names_the_topic(kafka):
    """A refused creation is an error with the topic and the broker's reason."""
    kafka.create_topic("twice")

    with pytest.raises(
        EmbeddedKafkaError, match="Could not create topic 'twice': Topic 'twice' already exists"
    ):
        kafka.create_topic("twice")


def test_a_deleted_topic_is_gone_and_its_name_is_free(kafka):
    """delete_topic returns when no broker lists the topic; a new one of the name is empty."""
    kafka.create_topic("gone")
    produce(kafka, "gone", 10)

    kafka.delete_topic("gone")

    assert "gone" not in kafka.admin().list_topics(timeout=10).topics
    kafka.create_topic("gone")
    assert count_records(kafka.client_config(), "gone") == 0


def test_an_unknown_topic_is_not_created_by_asking_for_it(kafka):
    """A misspelt topic is an error that names it, for readers and for writers."""
    with pytest.raises(UnknownTopic, match="misspelt"):
        read_topic(kafka.client_config(), "misspelt")

    errors = []
    client = producer(kafka, **{"message.timeout.ms": 3000})  # time enough for a broker to create it
    client.produce("misspelt", value=b"x", on_delivery=lambda error, _message: errors.append(error))
    assert client.flush(30) == 0
    assert [error is not None for error in errors] == [True]
    assert "misspelt" not in kafka.admin().list_topics(timeout=10).topics


def test_client_config_is_a_copy(kafka):
    """A caller who adds settings does not change those of the next caller."""
    kafka.client_config()["group.id"] = "mine"

    assert kafka.client_config() == {"bootstrap.servers": kafka.bootstrap_servers}


def test_a_record_is_read_as_it_was_written(kafka):
    """Key, value, headers, timestamp, tombstones and empty values come back unchanged."""
    kafka.create_topic("exact")
    client = producer(kafka, **{"linger.ms": 60_000})  # one batch: a second one could overtake a refused one
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    client.produce("exact", key=b"k", value=b"v", headers=headers, timestamp=1_700_000_000_123)
    client.produce("exact", key=b"k", value=None)
    client.produce("exact", key=None, value=b"")
    assert client.flush(30) == 0

    first, tombstone, empty = read_topic(kafka.client_config(), "exact")

    assert (first.topic, first.partition, first.offset) == ("exact", 0, 0)
    assert (first.key, first.value, first.headers) == (b"k", b"v", tuple(headers))
    assert (first.timestamp, first.timestamp_type) == (1_700_000_000_123, 1)
    assert (tombstone.key, tombstone.value) == (b"k", None)
    assert (empty.key, empty.value, empty.headers) == (None, b"", ())


def test_isolation_levels_see_what_they_should(kafka):
    """Open and aborted transactions are invisible to read_committed and visible to read_uncommitted."""
    kafka.create_topic("isolated", partitions=2)

    def counts():
        return tuple(
            count_records(kafka.client_config(), "isolated", isolation)
            for isolation in ("read_committed", "read_uncommitted")
        )

    client = producer(kafka, **{"transactional.id": "isolated"})
    client.init_transactions(30)
    client.begin_transaction()
    for number in range(10):
        client.produce("isolated", value=b"open", partition=number % 2)
    client.flush(30)
    assert counts() == (0, 10)

    client.abort_transaction(30)
    assert counts() == (0, 10)

    client.begin_transaction()
    client.produce("isolated", value=b"committed", partition=0)
    client.commit_transaction(30)
    wait_until(lambda: counts() == (1, 11))


def test_reading_joins_no_group(kafka):
    """The reader creates no consumer group that a run would find non-empty."""
    kafka.create_topic("groupless")
    produce(kafka, "groupless", 3)

    assert count_records(kafka.client_config(), "groupless") == 3

    groups = kafka.admin().list_consumer_groups(request_timeout=10).result().valid
    assert "airflow-eos-reader" not in [group.group_id for group in groups]


def test_a_consumer_group_starts_without_delay(kafka):
    """A subscribing consumer gets its partitions at once: brokers wait 3 s for further members by default."""
    kafka.create_topic("grouped")
    produce(kafka, "grouped", 1)
    consumer = Consumer({**kafka.client_config(), **QUIET, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["grouped"])
    try:
        assert consumer.poll(30).value() == b"0"
    finally:
        consumer.close()
    broker = ConfigResource(ResourceType.BROKER, str(kafka.brokers[0].node_id))
    settings = kafka.admin().describe_configs([broker])[broker].result()
    assert settings["group.initial.rebalance.delay.ms"].value == "0"


@pytest.mark.chaos
@pytest.mark.parametrize(("version", "expected"), [("4.3.1", 2), ("3.9.2", 1)])
def test_the_transaction_version_is_the_newest_of_the_release(version, expected):
    """KIP-890 transactions are on by default: version 2 on 4.x, version 1 on 3.9."""
    from kafka import KafkaAdminClient

    with EmbeddedKafka(version=version) as kafka:
        client = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        try:
            feature = client.describe_features()["transaction.version"]
        finally:
            client.close()
        assert feature["finalized"] == (expected, expected)


# -- faults --------------------------------------------------------------------------------------------------


@pytest.mark.chaos
def test_a_killed_broker_loses_no_acknowledged_record(three):
    """While a broker is dead the two others serve everything that was acknowledged, then it joins again."""
    three.create_topic("killed", partitions=6)
    produce(three, "killed", 3000, acks="all")
    victim = three.brokers[0]
    before = victim.pid

    victim.kill()

    assert (victim.is_alive, victim.pid) == (False, None)
    assert count_records(three.client_config(), "killed") == 3000
    produce(three, "killed", 3000, acks="all")
    victim.start()
    three.wait_in_sync()
    assert victim.is_alive
    assert victim.pid != before
    assert count_records(victim.address, "killed") == 6000


def test_a_paused_broker_answers_nothing_and_goes_on_after_resume(kafka):
    """pause() freezes the process with its connections open; after resume() the pending request completes."""
    kafka.create_topic("paused")
    broker = kafka.brokers[0]
    client = producer(kafka, **{"linger.ms": 0})
    client.produce("paused", value=b"before")
    assert client.flush(30) == 0

    broker.pause()
    try:
        state = Path(f"/proc/{broker.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        assert (state, broker.is_paused, broker.is_alive) == ("T", True, True)
        client.produce("paused", value=b"during")
        assert client.flush(1) == 1
    finally:
        broker.resume()

    assert client.flush(60) == 0
    assert not broker.is_paused
    assert [record.value for record in read_topic(kafka.client_config(), "paused")] == [b"before", b"during"]


@pytest.mark.chaos
def test_a_topic_can_be_created_while_a_broker_is_down(three):
    """Waiting for metadata asks the running brokers only."""
    three.wait_in_sync()
    three.brokers[2].stop()
    try:
        three.create_topic("without-one", partitions=3, replication_factor=2)
        produce(three, "without-one", 30, acks="all")
    finally:
        three.brokers[2].start()

    assert count_records(three.client_config(), "without-one") == 30


@pytest.mark.chaos
def test_a_full_outage_is_survived(three):
    """All brokers killed at once come back with all data; they are started together as they need a quorum."""
    three.wait_in_sync()
    three.create_topic("outage", partitions=3)
    produce(three, "outage", 300, acks="all")

    for broker in three.brokers:
        broker.kill()
    for broker in three.brokers:
        broker.start(wait=False)
    for broker in three.brokers:
        broker.wait_until_ready()

    three.wait_in_sync()
    assert count_records(three.client_config(), "outage") == 300


def test_a_block_that_fails_shows_what_its_brokers_said(caplog):
    """Their log files are deleted with them, so the block logs them."""
    kafka = EmbeddedKafka()
    with pytest.raises(UnknownTopic), kafka:
        count_records(kafka.bootstrap_servers, "nowhere")
    assert "before UnknownTopic" in caplog.text
    assert "Kafka Server started" in caplog.text


def test_a_running_broker_is_not_started_twice(kafka):
    """start() of a running broker is an error that says what to do first."""
    with pytest.raises(EmbeddedKafkaError, match=r"runs already .* kill\(\) or stop\(\) it first"):
        kafka.brokers[0].start()


# -- starting ------------------------------------------------------------------------------------------------


def test_a_broker_that_cannot_start_shows_its_log_and_leaves_nothing(monkeypatch, tmp_path):
    """The error has the broker's own message; processes and files are gone."""
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path))

    with pytest.raises(EmbeddedKafkaError, match=r"(?s)end of .*num\.io\.threads"):
        EmbeddedKafka(broker_config={"num.io.threads": "none"}).start()

    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


@pytest.mark.chaos
def test_a_port_taken_in_the_meantime_is_replaced(monkeypatch):
    """If another process binds a chosen port first, a second try follows; the test succeeds."""
    choose = cluster.free_ports
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        offers = [[taken.getsockname()[1], *choose(1)]]
        monkeypatch.setattr(cluster, "free_ports", lambda count: offers.pop() if offers else choose(count))

        with EmbeddedKafka() as kafka:
            assert not offers
            kafka.create_topic("second-try")


def test_a_port_of_ones_own_that_is_taken_is_not_replaced():
    """A port that the caller names is used, or an error says that it is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number = taken.getsockname()[1]
        with pytest.raises(EmbeddedKafkaError, match=f"port {number} of 127.0.0.1 is taken"):
            EmbeddedKafka(port=number).start()


def test_the_callers_settings_reach_the_broker(monkeypatch):
    """broker_config overrides the defaults. A broker starts in Turkish, too, which has a capital dotted I."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=tr")
    with EmbeddedKafka(broker_config={"num.partitions": 7}) as kafka:
        resource = ConfigResource(ResourceType.BROKER, "1")
        settings = kafka.admin().describe_configs([resource])[resource].result()

    assert settings["num.partitions"].value == "7"


@pytest.mark.chaos
def test_the_second_cluster_of_a_machine_maps_the_classes_of_the_first(monkeypatch, tmp_path):
    """A clean end writes the archive that makes later starts cheap, and later starts use it."""
    own = tmp_path / f"kafka-{cluster.DEFAULT_VERSION}"
    own.symlink_to(jars.fetch_jars(cluster.DEFAULT_VERSION))
    monkeypatch.setenv("AIRFLOW_EOS_CACHE", str(tmp_path))
    # If ending takes longer, no archive is written.
    monkeypatch.setattr(launch, "_ORDERLY_END", 200.0)

    with EmbeddedKafka():
        assert not (tmp_path / "class-data").exists()
    (archive,) = (tmp_path / "class-data").glob("*.jsa")

    with EmbeddedKafka() as kafka:
        maps = Path(f"/proc/{kafka.brokers[0].pid}/maps").read_text()
    assert str(archive) in maps
    assert list((tmp_path / "class-data").iterdir()) == [archive]


# -- ending --------------------------------------------------------------------------------------------------


def test_the_with_block_leaves_no_process_and_no_file(monkeypatch, tmp_path):
    """After the block nothing of the cluster exists, even if a broker was paused."""
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path))

    with EmbeddedKafka() as kafka:
        kafka.brokers[0].pause()
        assert len(processes_of(tmp_path)) == 2  # the broker and the watchdog

    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def test_the_with_block_cleans_up_without_its_watchdog_too(monkeypatch, tmp_path):
    """Killing the watchdog does not affect the normal clean-up."""
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path))

    with EmbeddedKafka() as kafka:
        (watchdog,) = set(processes_of(tmp_path)) - {kafka.brokers[0].pid}
        os.kill(watchdog, signal.SIGKILL)

    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


@pytest.mark.chaos
def test_keep_leaves_logs_for_a_look_afterwards(monkeypatch, tmp_path, caplog):
    """With keep the folder stays and a log line names it."""
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path))

    with EmbeddedKafka(keep=True) as kafka:
        log_path = kafka.brokers[0].log_path

    assert "Kafka Server started" in log_path.read_text()
    assert str(tmp_path) in caplog.text
    assert processes_of(tmp_path) == []


OWNER = """
import os, sys, time
from airflow_eos_testing import EmbeddedKafka
kafka = EmbeddedKafka(brokers=int(sys.argv[1]))
if len(sys.argv) > 2:
    print("starting", flush=True)
    kafka.start()
else:
    kafka.start()
    kafka.create_topic("t", partitions=3)
    kafka.brokers[-1].pause()
    print(*[broker.pid for broker in kafka.brokers], flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def running(folder, *command):
    """A command whose temporary files are in a folder; killed if the test has not ended it."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_sigkilled_test_process_leaves_no_broker_and_no_file(tmp_path):
    """Running and paused brokers die and the folder is removed though no Python code could clean up."""
    with running(tmp_path, "-c", OWNER, "3") as owner:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(is_running, pids))
        owner.kill()

    wait_until(lambda: not processes_of(tmp_path) and not list(tmp_path.iterdir()))
    wait_until(lambda: not any(map(is_running, pids)))


@pytest.mark.parametrize("seconds", [0.1, 0.4, 0.9, 1.5])
def test_a_test_process_killed_while_brokers_start_leaves_nothing(tmp_path, seconds):
    """The watchdog finds every process and file, at any moment of the start."""
    with running(tmp_path, "-c", OWNER, "1", "starting") as owner:
        owner.stdout.readline()
        time.sleep(seconds)  # the time of death, not a wait
        owner.kill()

    # After 20 s the folder goes in any case, and a broker without its folder ends by itself.
    wait_until(lambda: not processes_of(tmp_path) and not list(tmp_path.iterdir()), seconds=15)


# -- security ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured():
    with EmbeddedKafka(security="SASL_SSL", acls=True) as embedded:
        yield embedded


def refused(config):
    """Return errors that a client with this configuration meets in its first seconds; empty if it gets in."""
    errors = []
    with contextlib.closing(
        Consumer({**config, **QUIET, "group.id": "x", "error_cb": errors.append})
    ) as client:
        deadline = time.monotonic() + 30
        while not errors and time.monotonic() < deadline:
            with contextlib.suppress(KafkaException):
                client.list_topics(timeout=0.5)
                return ""
            client.poll(0.1)
    return " ".join(error.str() for error in errors)


def test_a_secured_cluster_serves_its_super_user(secured):
    """client_config() is complete: TLS with a verified host name, SCRAM, transactions, topics."""
    secured.create_topic("secret")
    client = producer(secured, **{"transactional.id": "secret"})
    client.init_transactions(30)
    client.begin_transaction()
    client.produce("secret", value=b"x")
    client.commit_transaction(30)

    wait_until(lambda: count_records(secured.client_config(), "secret") == 1)


def test_kafka_python_accepts_the_certificate(secured):
    """The certificate passes Python's own TLS checks, host name included."""
    from kafka import KafkaAdminClient

    config = secured.client_config()
    client = KafkaAdminClient(
        bootstrap_servers=config["bootstrap.servers"],
        security_protocol="SASL_SSL",
        ssl_cafile=config["ssl.ca.location"],
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username=config["sasl.username"],
        sasl_plain_password=config["sasl.password"],
    )
    try:
        assert len(client.describe_cluster()["brokers"]) == 1
    finally:
        client.close()


def test_a_client_without_the_right_credentials_does_not_get_in(secured):
    """A wrong password, an unknown user, a missing authority and plaintext are each refused."""
    good = secured.client_config()

    assert refused(good) == ""
    assert "uthentication failed" in refused({**good, "sasl.password": "wrong"})
    assert "uthentication failed" in refused({**good, "sasl.username": "nobody"})
    assert "certificate verify failed" in refused({k: v for k, v in good.items() if k != "ssl.ca.location"})
    assert "brokers are down" in refused({"bootstrap.servers": good["bootstrap.servers"]})


def test_a_user_may_do_what_was_granted_and_nothing_else(secured):
    """ACLs decide per operation; a revoked right is gone when revoke() returns."""
    secured.create_topic("guarded")
    secured.create_topic("forbidden")
    produce(secured, "guarded", 5)
    alice = secured.user("alice")

    with pytest.raises(AuthorizationFailed, match="guarded"):
        count_records(alice, "guarded")
    secured.grant("alice", "READ", "DESCRIBE", topic="guarded")
    secured.grant("alice", "READ", group="airflow-eos-reader")

    assert count_records(alice, "guarded") == 5
    with pytest.raises(AuthorizationFailed, match="forbidden"):
        count_records(alice, "forbidden")
    errors = []
    writer = Producer({**alice, **QUIET})
    writer.produce("guarded", value=b"x", on_delivery=lambda error, _message: errors.append(error))
    assert writer.flush(30) == 0
    assert [error.name() for error in errors] == ["TOPIC_AUTHORIZATION_FAILED"]
    secured.revoke("alice", "READ", "DESCRIBE", topic="guarded")
    with pytest.raises(AuthorizationFailed, match="guarded"):
        count_records(alice, "guarded")


def test_a_prefixed_grant_covers_every_name_that_begins_with_it(secured):
    """A transactional id with the granted prefix works, another one is refused."""
    secured.grant("bob", "WRITE", "DESCRIBE", transactional_id="eos.", prefixed=True)
    bob = secured.user("bob")

    Producer({**bob, **QUIET, "transactional.id": "eos.mine"}).init_transactions(30)
    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        Producer({**bob, **QUIET, "transactional.id": "other"}).init_transactions(30)


def test_passwords_stand_in_no_log_and_no_repr(secured):
    """Neither the cluster's repr, nor the broker's files and log, nor a command line holds a password."""
    secured.user("carol")
    passwords = [secured.user(name)["sasl.password"] for name in ("admin", "carol")]
    broker = secured.brokers[0]
    places = [repr(secured), repr(broker), broker.log_path.read_text()]
    places += [path.read_text() for path in broker.log_path.parent.glob("*.properties")]
    places.append(Path(f"/proc/{broker.pid}/cmdline").read_text())

    assert not [password for password in passwords for place in places if password in place]


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("brokers", "version", "security"),
    [(3, "4.3.1", "SASL_PLAINTEXT"), (1, "4.3.1", "SSL"), (1, "3.9.2", "SASL_SSL")],
)
def test_every_protocol_serves_readers_and_writers(brokers, version, security):
    """One and three brokers, both releases, each secured protocol: a record is written and read."""
    with EmbeddedKafka(brokers, version, security) as kafka:
        assert kafka.client_config()["security.protocol"] == security
        kafka.create_topic("through", partitions=brokers)
        produce(kafka, "through", 30, acks="all")

        assert count_records(kafka.client_config(), "through") == 30


# -- command line and fixtures -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signum", "port"), rest_in_chaos(1, [(signal.SIGTERM, True), (signal.SIGINT, False)])
)
def test_the_command_prints_its_address_and_ends_clean(tmp_path, signum, port):
    """The first line is the bootstrap servers, with the given port if there is one; a signal ends it."""
    command = ["-m", "airflow_eos_testing.kafka", "--topic", "orders:3", "--topic", "other"]
    chosen = str(cluster.free_ports(1)[0])
    command += ["--port", chosen] if port else []
    with running(tmp_path, *command) as process:
        bootstrap = process.stdout.readline().strip()
        assert (bootstrap == f"127.0.0.1:{chosen}") is port
        with contextlib.closing(
            Consumer({"bootstrap.servers": bootstrap, "group.id": "x", **QUIET})
        ) as client:
            topics = client.list_topics(timeout=30).topics
        assert (len(topics["orders"].partitions), len(topics["other"].partitions)) == (3, 1)
        process.send_signal(signum)

        assert process.wait(60) == 0
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_why_it_ended_when_its_broker_dies(tmp_path):
    """If its broker ends, the command ends with exit code 1 and shows the log."""
    with running(tmp_path, "-m", "airflow_eos_testing.kafka") as process:
        process.stdout.readline()
        (home,) = tmp_path.iterdir()
        (broker,) = marked_processes(f"-Dairflow.eos.home={home}")
        os.kill(broker, signal.SIGKILL)

        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "A broker ended by itself" in complaint
    assert "Kafka Server started" in complaint


USER_TESTS = """
names = set()

def test_first(embedded_kafka, kafka_topic):
    names.add((embedded_kafka.bootstrap_servers, kafka_topic("orders", partitions=2)))

def test_second(embedded_kafka, kafka_topic):
    names.add((embedded_kafka.bootstrap_servers, kafka_topic("orders")))
    assert len(names) == 2
    assert len({bootstrap for bootstrap, _ in names}) == 1
    assert all(name.startswith("orders-") for _, name in names)
    topics = embedded_kafka.admin().list_topics(timeout=10).topics
    assert {name for _, name in names} <= set(topics)

def test_that_fails(embedded_kafka):
    assert embedded_kafka is None

def test_without_kafka():
    assert False
"""


def test_the_fixtures_share_a_broker_and_show_its_log_when_a_test_fails(tmp_path):
    """One broker serves the session, topics have unique names, and failed tests show brokers' warnings."""
    (tmp_path / "test_user.py").write_text(USER_TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "airflow_eos_testing.fixtures", "-rf", "-v"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=120,
    )

    assert "2 failed, 2 passed" in done.stdout
    assert done.stdout.count("broker logs of embedded_kafka") == 1
    assert "warnings in the last" in done.stdout
    assert "Kafka Server started" not in done.stdout


def test_archives_of_another_jvm_are_not_shared():
    """The archive's name depends on the Java that runs, so two Java versions use different files."""
    classpath = jars.broker_classpath(cluster.DEFAULT_VERSION)

    archive = class_data.archive_path("kafka-4.3.1", Path("/java-17/bin/java"), classpath)
    other = class_data.archive_path("kafka-4.3.1", Path("/java-21/bin/java"), classpath)

    assert archive != other
