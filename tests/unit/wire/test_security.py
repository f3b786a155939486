"""TLS contexts from files and from text."""

from __future__ import annotations

import os
import ssl
import subprocess

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.kafka_python_config import for_kafka_python
from airflow_eos.wire.security import ssl_context

BASE = {"bootstrap.servers": "a:1", "security.protocol": "ssl"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate with an unencrypted key and one with a password."""
    folder = tmp_path_factory.mktemp("tls")
    create = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    files = "-keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    subprocess.run(
        f"{create} {files}".split(),
        cwd=folder,
        check=True,
        capture_output=True,
    )
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", "key.pem", "-out", "locked.pem", "-passout", "pass:pw"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


def context(**settings):
    return ssl_context(ClientConfig.of({**BASE, **{k.replace("__", "."): v for k, v in settings.items()}}))


def test_names_and_certificates_are_verified_by_default():
    """As librdkafka does since 2.0; nothing older than TLS 1.2."""
    tls = context()
    assert tls.verify_mode is ssl.CERT_REQUIRED
    assert tls.check_hostname
    assert tls.minimum_version is ssl.TLSVersion.TLSv1_2


def test_the_name_check_alone_can_be_off():
    """ssl.endpoint.identification.algorithm=none keeps the certificate check."""
    tls = context(ssl__endpoint__identification__algorithm="none")
    assert tls.verify_mode is ssl.CERT_REQUIRED
    assert not tls.check_hostname


def test_verification_can_be_off():
    """enable.ssl.certificate.verification=false is for tests, and works."""
    tls = context(enable__ssl__certificate__verification="false")
    assert tls.verify_mode is ssl.CERT_NONE


def test_an_unknown_name_check_is_refused():
    """A typing error must not disable a check."""
    with pytest.raises(ConfigurationError, match=r"endpoint\.identification"):
        context(ssl__endpoint__identification__algorithm="htps")


def test_authorities_come_from_a_file_text_or_folder(certificate):
    """Exactly the given authority is trusted."""
    path = certificate / "cert.pem"
    for settings in ({"ssl.ca.location": str(path)}, {"ssl.ca.pem": path.read_text()}):
        tls = ssl_context(ClientConfig.of({**BASE, **settings}))
        assert [ca["subject"] for ca in tls.get_ca_certs()] == [((("commonName", "localhost"),),)]
    assert ssl_context(ClientConfig.of({**BASE, "ssl.ca.location": str(certificate)})).get_ca_certs() == []


def test_a_client_certificate_comes_from_files_or_text(certificate):
    """With and without a password, which counts."""
    cert, key, locked = (certificate / name for name in ("cert.pem", "key.pem", "locked.pem"))
    context(ssl__certificate__location=str(cert), ssl__key__location=str(key))
    context(ssl__certificate__location=str(cert), ssl__key__location=str(locked), ssl__key__password="pw")
    context(ssl__certificate__pem=cert.read_text(), ssl__key__pem=key.read_text())
    context(ssl__certificate__pem=cert.read_text(), ssl__key__pem=locked.read_text(), ssl__key__password="pw")
    with pytest.raises(ConfigurationError, match=r"ssl\.certificate\.location"):
        context(ssl__certificate__location=str(cert), ssl__key__location=str(locked), ssl__key__password="x")


def test_pem_text_may_have_comments_in_any_letters(certificate):
    """CA bundles name their authorities in comments; librdkafka accepts them."""
    cert, key = (
        f"# F\u0151tan\u00fas\u00edtv\u00e1ny\n{(certificate / name).read_text()}"
        for name in ("cert.pem", "key.pem")
    )
    assert len(context(ssl__ca__pem=cert).get_ca_certs()) == 1
    context(ssl__certificate__pem=cert, ssl__key__pem=key)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory are Linux's")
def test_pem_text_is_written_to_no_disk(certificate, monkeypatch):
    """A process that is killed while it loads a key leaves no file."""
    monkeypatch.setattr("tempfile.mkstemp", None)
    cert, key = ((certificate / name).read_text() for name in ("cert.pem", "key.pem"))
    context(ssl__certificate__pem=cert, ssl__key__pem=key)


def test_pem_text_leaves_no_file_behind(certificate, tmp_path, monkeypatch):
    """Without in-memory files, the key's temporary file is deleted, also after an error."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    cert = (certificate / "cert.pem").read_text()
    context(ssl__certificate__pem=cert, ssl__key__pem=(certificate / "key.pem").read_text())
    with pytest.raises(ConfigurationError):
        context(ssl__certificate__pem=cert, ssl__key__pem="no key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"ssl.ca.location": "/no/such/file.pem"}, "ssl.ca.location"),
        ({"ssl.ca.pem": "nonsense-content"}, "ssl.ca.pem"),
        ({"ssl.crl.location": "/no/such/file.crl"}, "ssl.crl.location"),
        ({"ssl.certificate.location": "/no/such/file.pem"}, "ssl.certificate.location"),
        ({"ssl.certificate.pem": "nonsense-content"}, "ssl.key.pem"),
        (
            {"ssl.certificate.pem": "nonsense-content", "ssl.key.pem": "nonsense-content"},
            "ssl.certificate.pem",
        ),
        ({"ssl.cipher.suites": "nonsense-content"}, "ssl.cipher.suites"),
    ],
)
def test_what_cannot_be_loaded_is_named_and_not_shown(settings, key):
    """The message has the setting's name, and never the content of a key."""
    with pytest.raises(ConfigurationError, match=key.replace(".", r"\.")) as caught:
        for_kafka_python({**BASE, **settings})
    assert "nonsense-content" not in str(caught.value)


def test_a_locked_key_without_password_does_not_ask_the_terminal(certificate):
    """OpenSSL would prompt and hang the task: it is an error instead."""
    cert, locked = str(certificate / "cert.pem"), str(certificate / "locked.pem")
    with pytest.raises(ConfigurationError, match=r"ssl\.certificate\.location"):
        context(ssl__certificate__location=cert, ssl__key__location=locked)


def test_a_revocation_list_is_checked(certificate, tmp_path):
    """With ssl.crl.location, leaf certificates are checked against it."""
    (tmp_path / "index.txt").write_text("")
    (tmp_path / "ca.cnf").write_text("[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\ndefault_md=sha256\n")
    subprocess.run(
        f"openssl ca -gencrl -config ca.cnf -crldays 1 -out list.crl "
        f"-keyfile {certificate / 'key.pem'} -cert {certificate / 'cert.pem'}".split(),
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    tls = context(ssl__crl__location=str(tmp_path / "list.crl"))
    assert tls.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF


def test_a_plaintext_configuration_builds_no_context():
    """TLS settings have no effect with security.protocol=plaintext, as in librdkafka."""
    assert "ssl_context" not in for_kafka_python({"bootstrap.servers": "a:1", "ssl.ca.location": "/none"})
