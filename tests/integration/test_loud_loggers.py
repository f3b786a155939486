"""Credentials stay out of logs at every level: driver, Python workers, every client library."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from airflow_eos_testing import EmbeddedKafka
from tests.support.cases import rest_in_chaos
from tests.support.local_runs import Pipeline
from tests.support.loud_run import SITE_CUSTOMIZE, TOKEN_MARKER, unsecured_token
from tests.support.tables import new_catalog

PASSWORD = "password-marker-7d2e"
STORAGE_SECRET = "storage-marker-90cf"
"""The secret of a table's file storage."""
_MODULES = "org.apache.kafka.common.security"
_UNSECURED = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required"
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{40,}")


@pytest.fixture(scope="module")
def kafka():
    """A broker that accepts SCRAM, PLAIN and unsigned OAuth tokens."""
    listener = "listener.name.client"
    with EmbeddedKafka(
        security="SASL_PLAINTEXT",
        broker_config={
            f"{listener}.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
            f"{listener}.plain.sasl.jaas.config": (
                f'{_MODULES}.plain.PlainLoginModule required user_loud="{PASSWORD}";'
            ),
            f"{listener}.oauthbearer.sasl.jaas.config": (
                f'{_UNSECURED} unsecuredLoginStringClaim_sub="broker";'
            ),
        },
    ) as running:
        yield running


def settings_of(kafka, mechanism):
    """Return client settings of a mechanism, and those parts of them that must not be visible."""
    base = {"bootstrap.servers": kafka.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
    if mechanism == "PLAIN":
        login = {"sasl.mechanism": "PLAIN", "sasl.username": "loud", "sasl.password": PASSWORD}
        return {**base, **login}, [PASSWORD]
    if mechanism == "OAUTHBEARER":
        login = {"sasl.mechanism": mechanism, "oauth_cb": "tests.support.loud_run:unsecured_token"}
        token = unsecured_token("")[0].split(".")[1]
        return {**base, **login}, [token[:16], TOKEN_MARKER]
    login = kafka.user("loud")
    # A SCRAM proof over a known nonce and salt is enough to try passwords offline.
    return login, [login["sasl.password"], "c=biws,r="]


def seen(text, secret):
    """Return lines that contain a secret, also inside base64, in which py4j sends arguments."""
    wanted = secret.encode()
    lines = [line for line in text.splitlines() if wanted in line]
    for line in text.splitlines():
        for encoded in _BASE64.findall(line):
            padded = encoded.replace(b"-", b"+").replace(b"_", b"/")
            for shift in range(4):
                piece = padded[shift:]
                if wanted in base64.b64decode(piece[: len(piece) // 4 * 4]):
                    lines.append(line)
                    break
    return [line[:300] for line in lines]


def storage_of(folder):
    """Make a table; return its catalog's properties, with credentials of a storage that it does not use."""
    properties = new_catalog(folder)
    with load_catalog("c", **properties) as catalog:
        catalog.create_table("db.t", schema=pa.schema([("value", pa.string())]))
    return {**properties, **dict.fromkeys(("s3.secret-access-key", "adls.connection-string"), STORAGE_SECRET)}


def run_loudly(kafka, config, folder, catalog=None):
    """Run once in a separate process; return everything that it and its Python workers wrote.

    :param catalog: catalog of a table, for a second run in the same process.
    """
    pipeline = Pipeline(kafka)
    pipeline.publish(["a", "b"])
    names = {name: getattr(pipeline, name) for name in ("source", "sink", "ledger")}
    names |= {"pipeline": pipeline.spec.pipeline, "group": pipeline.spec.group_id}
    (folder / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.loud_run"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        input=json.dumps({"kafka": {**config, "debug": "all"}, "names": names, "catalog": catalog}).encode(),
        capture_output=True,
        timeout=180,
        check=False,
    )
    text = done.stdout + done.stderr
    assert b"r1 COMMITTED 2" in done.stdout, text[-3000:]
    assert catalog is None or b"r2 COMMITTED 2" in done.stdout, text[-3000:]
    assert pipeline.output() == ["a", "b"]
    return text


@pytest.mark.parametrize("mechanism", rest_in_chaos(2, ["PLAIN", "OAUTHBEARER", "SCRAM-SHA-512"]))
def test_no_logger_at_debug_shows_credentials(kafka, mechanism, tmp_path):
    """Whole runs with Spark, all at DEBUG: kafka-python, librdkafka, py4j, pyiceberg, this package."""
    config, secrets = settings_of(kafka, mechanism)
    text = run_loudly(kafka, config, tmp_path, storage_of(tmp_path) if mechanism == "PLAIN" else None)
    for name in (b"py4j.clientserver", b"airflow_eos.librdkafka"):
        assert name in text, name
    logged_in = rb"pid=(\d+) kafka\.net\.connection: .*SaslAuthenticateRequest\(\*\*\*\)"
    assert len(set(re.findall(logged_in, text))) > 1, "the driver or the workers were not loud"
    for secret in (*secrets, STORAGE_SECRET):
        assert not seen(text, secret), secret
