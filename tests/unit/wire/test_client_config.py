"""One configuration in librdkafka's names: what each client library gets, and what is refused."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import threading
import traceback
from http.client import HTTPException

import pytest
from kafka.net.manager import KafkaConnectionManager

from airflow_eos.broker.librdkafka import base_settings
from airflow_eos.exceptions import ConfigurationError, UntranslatableConfig
from airflow_eos.recordbatch.limits import DecodeLimits
from airflow_eos.wire import security
from airflow_eos.wire.backoff import TRANSIENT
from airflow_eos.wire.client_config import ClientConfig, import_callable
from airflow_eos.wire.ignored_settings import HINTS, IGNORED, OWNED_BY_PACKAGE
from airflow_eos.wire.kafka_python_config import for_kafka_python
from airflow_eos.wire.node_connections import NodeConnections

BASE = {"bootstrap.servers": "a:1, b:2"}
SCRAM = {
    **BASE,
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "scram-sha-512",
    "sasl.username": "alice",
    "sasl.password": "s3cret",
}


def translated(**settings):
    return for_kafka_python({**BASE, **{key.replace("__", "."): value for key, value in settings.items()}})


def a_token(config):
    return f"token-of-{config}", 4102444800.0


def test_only_the_servers_are_needed():
    """Everything else has a default of kafka-python or of the wire layer."""
    assert for_kafka_python(BASE) == {"bootstrap_servers": ["a:1", "b:2"], "security_protocol": "PLAINTEXT"}


@pytest.mark.parametrize(
    "server", ["localhost:port", "::::", "b:x", "c:", ":9092", "d:0", "e:99999999", "f:-1"]
)
def test_servers_that_are_no_addresses_are_refused(server):
    """Before anything connects, and without an open socket."""
    with pytest.raises(
        ConfigurationError, match=f"^'{server}' in client setting 'bootstrap.servers' is not an"
    ):
        NodeConnections({"bootstrap.servers": f"a:1,{server}"})


def test_addresses_of_all_forms_are_passed_on():
    """With a protocol, of IPv6, and without a port."""
    servers = ["PLAINTEXT://a:1", "[::1]:9092", "::1", "b"]
    assert for_kafka_python({"bootstrap.servers": ",".join(servers)})["bootstrap_servers"] == servers


@pytest.mark.parametrize(
    ("key", "value", "name", "expected"),
    [
        ("client.dns.lookup", "resolve_canonical_bootstrap_servers_only", "client_dns_lookup", None),
        ("client.id", "me", "client_id", None),
        ("connections.max.idle.ms", "60000", "connections_max_idle_ms", 60000),
        ("connections.max.idle.ms", 0, "connections_max_idle_ms", 604800000),
        ("metadata.max.age.ms", "5000", "metadata_max_age_ms", 5000),
        ("receive.message.max.bytes", 123456, "receive_message_max_bytes", None),
        ("reconnect.backoff.max.ms", "2000", "reconnect_backoff_max_ms", 2000),
        ("reconnect.backoff.ms", 20, "reconnect_backoff_ms", None),
        ("socket.connection.setup.timeout.ms", 7000, "socket_connection_setup_timeout_ms", None),
        ("socket.timeout.ms", "45000", "request_timeout_ms", 45000),
        ("security.protocol", "plaintext", "security_protocol", "PLAINTEXT"),
    ],
)
def test_a_setting_is_translated(key, value, name, expected):
    """Names and types differ, the meaning does not."""
    out = for_kafka_python({**BASE, key: value})
    assert out[name] == (value if expected is None else expected)
    assert name in KafkaConnectionManager.DEFAULT_CONFIG


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reconnect.backoff.ms", -5),
        ("socket.timeout.ms", 0),
        ("socket.send.buffer.bytes", 10**12),
        ("metadata.max.age.ms", "soon"),
    ],
)
def test_a_number_that_librdkafka_refuses_is_refused_before_a_connection(key, value):
    """It is not retried as if brokers did not answer, which a refusal by the socket would cause."""
    with pytest.raises(ConfigurationError, match=f"^client setting '{key}' is {value!r}; it must be from "):
        NodeConnections({**BASE, key: value})


@pytest.mark.parametrize("key", ["sasl.mechanism", "sasl.mechanisms"])
def test_sasl_is_translated_under_both_names(key):
    """librdkafka takes either name of the mechanism."""
    config = {k: v for k, v in SCRAM.items() if k != "sasl.mechanism"}
    out = for_kafka_python({**config, key: "SCRAM-SHA-512"})
    assert out["security_protocol"] == "SASL_PLAINTEXT"
    assert out["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (out["sasl_plain_username"], out["sasl_plain_password"]) == ("alice", "s3cret")


@pytest.mark.parametrize(("mechanism", "name"), [("SCRAM-SHA-256", "a=3D2=2Cb"), ("PLAIN", "a=2,b")])
def test_a_user_name_is_escaped_where_scram_separates_by_it(mechanism, name):
    """Kafka-python does not escape the name; librdkafka does."""
    config = {**SCRAM, "sasl.mechanism": mechanism, "sasl.username": "a=2,b"}
    assert for_kafka_python(config)["sasl_plain_username"] == name
    assert base_settings(ClientConfig.of(config))["sasl.username"] == "a=2,b"


def test_kerberos_needs_no_password():
    """GSSAPI is librdkafka's default mechanism; the ticket cache has the identity."""
    out = translated(security__protocol="sasl_plaintext", sasl__kerberos__service__name="broker")
    assert out["sasl_mechanism"] == "GSSAPI"
    assert out["sasl_kerberos_service_name"] == "broker"


def test_socket_options_are_translated():
    """Buffers and flags become socket options, on top of no-delay and keep-alive."""
    out = for_kafka_python(
        {
            **BASE,
            "socket.send.buffer.bytes": 1 << 20,
            "socket.receive.buffer.bytes": "0",
            "socket.nagle.disable": "true",
        }
    )
    assert out["socket_options"] == [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20),
    ]
    assert translated(socket__keepalive__enable="false")["socket_options"][1][2] == 0


def test_an_oauth_callback_becomes_a_token_provider():
    """A token is asked for once and used for most of its life; the configuration text is passed on."""
    calls = []

    def callback(config):
        calls.append(config)
        return a_token(config)

    out = for_kafka_python(
        {
            **BASE,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.config": "scope=x",
            "oauth_cb": callback,
        }
    )
    provider = out["sasl_oauth_token_provider"]
    assert [provider.token(), provider.token()] == ["token-of-scope=x"] * 2
    assert calls == ["scope=x"]
    assert provider.extensions() == {}


def test_an_expired_token_is_asked_for_again():
    """A token whose expiry has passed is not used twice."""
    calls = []

    def callback(_):
        calls.append(1)
        return f"token{len(calls)}", 0.0, "principal", {"traceId": "1"}

    provider = for_kafka_python({**BASE, "oauth_cb": callback})["sasl_oauth_token_provider"]
    assert [provider.token(), provider.token()] == ["token1", "token2"]
    assert provider.extensions() == {"traceId": "1"}


def test_an_oauth_callback_may_be_named():
    """A dotted name keeps the configuration picklable and is imported where it is used."""
    config = ClientConfig.of({**BASE, "oauth_cb": "platform.node"})
    assert pickle.loads(pickle.dumps(config)) == config
    assert callable(base_settings(config)["oauth_cb"])


def test_an_oauth_callback_may_have_the_name_of_its_module(tmp_path, monkeypatch):
    """A package that exports a function from a submodule of the same name, and a file with a dash."""
    (tmp_path / "tokens_of_us").mkdir()
    (tmp_path / "tokens_of_us/token.py").write_text("def token(_): ...\n")
    (tmp_path / "tokens_of_us/__init__.py").write_text("from tokens_of_us.token import token\n")
    (tmp_path / "tokens-of-us.py").write_text("from tokens_of_us import token\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = ("tokens_of_us.token", "tokens_of_us:token", "tokens_of_us.token.token", "tokens-of-us.token")
    assert len({import_callable("oauth_cb", name) for name in names}) == 1


def test_an_oauth_callback_whose_module_fails_to_import_has_that_error_as_cause(tmp_path, monkeypatch):
    """The missing dependency is named, not the module that needs it."""
    (tmp_path / "needy_tokens").mkdir()
    (tmp_path / "needy_tokens/__init__.py").touch()
    (tmp_path / "needy_tokens/token.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError) as error:
        import_callable("oauth_cb", "needy_tokens.token.token")
    assert "no_such_dependency" in str(error.value.__cause__)


@pytest.mark.parametrize("name", ["no_such_module_here.f", "platform.no_such", "platform", "sys.path"])
def test_an_oauth_callback_that_cannot_be_imported_is_named(name):
    """The error has the name."""
    with pytest.raises(ConfigurationError, match="oauth_cb"):
        for_kafka_python({**BASE, "oauth_cb": name})


@pytest.mark.parametrize("value", [5, ["f"]])
def test_an_oauth_callback_must_be_callable(value):
    """Anything else is refused before a connection is tried."""
    with pytest.raises(ConfigurationError, match="must be a function"):
        for_kafka_python({**BASE, "oauth_cb": value})


@pytest.mark.parametrize("answer", ["token", ("token",), None])
def test_an_oauth_callback_must_return_token_and_expiry(answer):
    """A wrong answer is an error that does not show its content."""
    provider = for_kafka_python({**BASE, "oauth_cb": lambda _: answer})["sasl_oauth_token_provider"]
    with pytest.raises(ConfigurationError, match=r"\(token, expiry"):
        provider.token()


def test_an_oauth_callback_that_fails_ends_the_attempt_at_once():
    """A bug in it is not an unavailable broker."""

    def failing(_):
        raise KeyError("client_id")

    provider = for_kafka_python({**BASE, "oauth_cb": failing})["sasl_oauth_token_provider"]
    with pytest.raises(ConfigurationError, match="'oauth_cb' failed: KeyError"):
        provider.token()


@pytest.mark.parametrize("failure", [ConnectionResetError("reset"), HTTPException("reset")], ids=repr)
def test_an_issuer_that_does_not_answer_is_asked_again(failure):
    """Libraries need not derive their errors from OSError, after which brokers are retried."""

    def unreachable(_):
        raise failure

    provider = for_kafka_python({**BASE, "oauth_cb": unreachable})["sasl_oauth_token_provider"]
    with pytest.raises(TRANSIENT, match=f"'oauth_cb' failed: {type(failure).__name__}: reset"):
        provider.token()


def test_an_issuer_that_never_answers_is_given_up(monkeypatch):
    """The callback would block the event loop, and with it every time-out."""
    monkeypatch.setattr(security, "CALLBACK_SECONDS", 0.05)
    answered = threading.Event()
    settings = {**BASE, "oauth_cb": lambda _: answered.wait(60)}
    provider = for_kafka_python(settings)["sasl_oauth_token_provider"]
    with pytest.raises(TRANSIENT, match="'oauth_cb' has not returned"):
        provider.token()
    answered.set()


@pytest.mark.parametrize(
    "argument",
    [
        "https://issuer/token?client_id=me&client_secret=t0p%2Fsecret",
        "id=me,secret=t0p/secret",
        "id=me secret=t0p/secret",
        '{"id": "me", "secret": "t0p/secret"}',
    ],
)
@pytest.mark.parametrize("kind", [HTTPException, ValueError])
def test_a_failed_call_back_shows_no_part_of_its_argument(argument, kind):
    """Libraries include the requested address in their errors, with its parameters; authors may, too."""

    def unreachable(given):
        raise kind(f"no route to {given.replace('issuer', 'issuer:443')}, t0p/secret")

    settings = {**BASE, "oauth_cb": unreachable, "sasl.oauthbearer.config": argument}
    with pytest.raises(
        (*TRANSIENT, ConfigurationError),
        match=rf"{kind.__name__}: no route to .*<sasl\.oauthbearer\.config>",
    ) as failed:
        for_kafka_python(settings)["sasl_oauth_token_provider"].token()
    assert "secret" not in "".join(traceback.format_exception(failed.value)).replace("secret=", "")


@pytest.mark.parametrize("key", sorted(IGNORED))
def test_every_ignored_key_has_a_reason_and_is_accepted(key):
    """The wire layer ignores librdkafka's consumer and producer settings."""
    assert len(IGNORED[key]) > 10
    assert for_kafka_python({**BASE, key: "1"}) == for_kafka_python(BASE)


@pytest.mark.parametrize(
    "key", ["no.such.setting", "sasl.jaas.config", "ssl.keystore.location", "ssl.curves.list"]
)
def test_any_other_key_is_refused_by_name(key):
    """A setting that would be dropped silently is an error that has its name, not its value."""
    with pytest.raises(UntranslatableConfig, match=key.replace(".", r"\.")) as caught:
        for_kafka_python({**BASE, key: "the-value"})
    assert "the-value" not in str(caught.value)


@pytest.mark.parametrize("key", sorted(HINTS))
def test_a_refused_key_says_what_to_use_instead(key):
    """Common settings have their own hint."""
    with pytest.raises(UntranslatableConfig, match=key.replace(".", r"\.") + ".*: .{20}"):
        for_kafka_python({**BASE, key: "v4"})


def test_harmless_values_of_refused_keys_are_accepted():
    """The default of a setting changes nothing."""
    for_kafka_python({**BASE, "broker.address.family": "any", "sasl.oauthbearer.method": "default"})


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"security.protocol": "tls"}, "security.protocol"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanisms": "NTLM"}, "sasl.mechanisms"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN"}, "sasl.username"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN", "sasl.username": "a"},
            "sasl.password",
        ),
        ({"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"}, "oauth_cb"),
        ({"socket.timeout.ms": "soon"}, "socket.timeout.ms"),
        ({"socket.nagle.disable": "maybe"}, "socket.nagle.disable"),
        ({"client.dns.lookup": "default"}, "client.dns.lookup"),
    ],
)
def test_a_wrong_value_is_named(settings, key):
    """The message names the setting."""
    with pytest.raises(ConfigurationError, match=key.replace(".", r"\.")):
        for_kafka_python({**BASE, **settings})


@pytest.mark.parametrize("settings", [{}, {"bootstrap.servers": ""}, {"bootstrap.servers": " , "}])
def test_servers_are_required(settings):
    """No broker can be found without bootstrap servers."""
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        ClientConfig.of(settings)


def test_two_names_of_one_setting_must_agree():
    """It would be unclear which one wins."""
    assert ClientConfig.of({"metadata.broker.list": "a:1", "bootstrap.servers": "a:1"})
    with pytest.raises(ConfigurationError, match=r"metadata\.broker\.list|bootstrap\.servers"):
        ClientConfig.of({"metadata.broker.list": "a:1", "bootstrap.servers": "b:1"})


def test_secrets_are_hidden():
    """Neither repr nor str shows a password, a key, a token or a callback."""
    secrets = {
        "sasl.password": "hush1",
        "ssl.key.password": "hush2",
        "ssl.key.pem": "hush3",
        "sasl.oauthbearer.client.secret": "hush4",
        "sasl.jaas.config": "password=hush5",
        "sasl.oauthbearer.config": "hush6",
        "ssl.keystore.password": "hush7",
    }
    config = ClientConfig.of({**BASE, **secrets})
    for text in (repr(config), str(config), f"{config}"):
        assert "hush" not in text
        assert "a:1, b:2" in text
        assert "sasl.password=***" in text


def test_librdkafka_gets_its_own_settings_without_those_the_package_owns():
    """Group, commits, isolation and the transactional id are never taken from a connection."""
    owned = dict.fromkeys(OWNED_BY_PACKAGE, "x")
    out = base_settings(
        ClientConfig.of(
            {**SCRAM, **owned, "socket.keepalive.enable": True, "ssl.keystore.location": "/store.p12"}
        )
    )
    assert not set(out) & OWNED_BY_PACKAGE
    assert out["socket.keepalive.enable"] is True
    assert out["ssl.keystore.location"] == "/store.p12"
    assert out["sasl.mechanisms"] == "scram-sha-512"


def test_a_config_is_frozen_equal_by_value_and_picklable():
    """It is sent to executors and may be a dictionary key."""
    config = ClientConfig.of(SCRAM)
    assert config == ClientConfig.of(dict(reversed(SCRAM.items()))) == ClientConfig.of(config)
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(ClientConfig.of(SCRAM))
    assert config["sasl.username"] == "alice"
    assert config.get("nothing", 1) == 1
    assert "sasl.password" in config
    assert ClientConfig.of(dict(config.items)) == config
    assert set(config) == {name for name, _ in config.items}


def test_the_module_imports_no_client_library():
    """Dag parsing may import it without kafka, confluent_kafka, ssl or pyarrow."""
    code = (
        "import sys; before = set(sys.modules); import airflow_eos.wire.client_config\n"
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"kafka", "confluent_kafka", "ssl", "pyarrow", "numpy", "airflow"} & set(done.stdout.split())


def test_bounds_of_a_record_batch_are_settings_of_this_package():
    """They reach the decoder with every configuration, but no client library."""
    given = {"bootstrap.servers": "a:1", "eos.max.batch.bytes": "1048576", "eos.max.record.headers": 7}
    config = ClientConfig.of(given)
    assert config.decode_limits == DecodeLimits(1_048_576, 7)
    assert base_settings(config) == base_settings(ClientConfig.of({"bootstrap.servers": "a:1"}))
    assert "eos" not in str(for_kafka_python(config))
    assert ClientConfig.of({"bootstrap.servers": "a:1"}).decode_limits == DecodeLimits()


@pytest.mark.parametrize("value", ["many", 0, -1, 2**31])
@pytest.mark.parametrize("key", ["eos.max.batch.bytes", "eos.max.record.headers"])
def test_a_bound_that_is_none_is_refused(key, value):
    """Before anything is opened."""
    with pytest.raises(ConfigurationError, match=rf"{key}.*must be from 1"):
        for_kafka_python({"bootstrap.servers": "a:1", key: value})


@pytest.mark.parametrize(
    "name",
    [
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "basic.auth.user.info",
    ],
)
def test_keys_of_assertions_are_secrets(name):
    """Like a password: not shown, and a reason to encrypt the connection to Spark."""
    config = ClientConfig.of({"bootstrap.servers": "a:1", name: "geheim"})
    assert "geheim" not in repr(config)
    assert config.has_secrets
