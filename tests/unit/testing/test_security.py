"""The settings of a secured cluster, without a broker."""

from __future__ import annotations

import ssl
import stat

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.access import Resource
from airflow_eos_testing.certificates import make_certificates
from airflow_eos_testing.security import Security


def test_acls_without_named_clients_are_refused():
    """Under SSL alone every client is anonymous, as the brokers are: ACLs would protect nothing."""
    with pytest.raises(ConfigurationError, match="acls=True needs clients with names"):
        EmbeddedKafka(security="SSL", acls=True)


def test_an_unknown_protocol_names_the_known_ones():
    """A misspelt protocol is an error with the four existing ones."""
    with pytest.raises(
        ConfigurationError, match="'TLS' is not one of PLAINTEXT, SASL_PLAINTEXT, SSL, SASL_SSL"
    ):
        EmbeddedKafka(security="TLS")


def test_plaintext_adds_nothing():
    """An unsecured cluster has plain settings on both sides."""
    assert Security().broker_settings(None) == {}
    assert Security().client_settings(None) == {}


def test_users_need_a_sasl_protocol():
    """user() of a cluster without authentication names the protocols to choose."""
    with pytest.raises(ConfigurationError, match="use SASL_PLAINTEXT or SASL_SSL"):
        EmbeddedKafka(security="SSL").user("alice")


def test_the_authority_can_be_loaded_and_the_key_is_private(tmp_path):
    """Clients can trust the authority; no other user may read the server's key."""
    files = make_certificates(tmp_path)

    context = ssl.create_default_context(cafile=str(files.ca))
    assert "airflow-eos embedded Kafka CA" in str(context.get_ca_certs())
    assert stat.S_IMODE(files.keystore.stat().st_mode) == 0o600
    parts = [line for line in files.keystore.read_text().splitlines() if line.startswith("-----BEGIN")]
    assert parts == ["-----BEGIN PRIVATE KEY-----", *["-----BEGIN CERTIFICATE-----"] * 2]


@pytest.mark.parametrize("fields", [{}, {"topic": "a", "group": "b"}, {"prefixed": True}])
def test_a_permission_is_about_exactly_one_resource(fields):
    """None and two resources are refused."""
    with pytest.raises(ConfigurationError, match="Give one of topic, group, transactional_id and cluster"):
        Resource(**fields)


def test_an_unknown_operation_is_refused_by_name():
    """A misspelt operation lists the ones that exist."""
    with pytest.raises(ConfigurationError, match=r"'REED' is not one of .*READ"):
        Resource(topic="a").binding_fields("alice", "REED")
