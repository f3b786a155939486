"""A signature covers one record at one place by one producer, and its secret is never shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_eos.exceptions import ConfigurationError, LedgerUnreadable
from airflow_eos.ledger.records.signed import SignedFrom
from airflow_eos.model.signature import LedgerKey, SignedRecord
from airflow_eos.model.spec import Deployment, LedgerSettings, RunSpec
from airflow_eos.model.spec_json import spec_from_json, spec_to_json

SECRET = "a-secret-of-length"
RECORD = SignedRecord("ledger", "id", 3, (7, 1), "run:x", "value")
SPEC = RunSpec(
    kafka={"bootstrap.servers": "a:1"},
    pipeline="p",
    run_id="r",
    source_topics=("s",),
    group_id="g",
    ledger=LedgerSettings(key=SECRET),
)


def test_what_was_signed_is_recognised() -> None:
    """By every reader that has the secret among its own."""
    signature = LedgerKey(SECRET).sign(RECORD)
    assert signature is not None
    assert len(signature) == 32
    assert LedgerKey(f"another-secret-of-mine {SECRET}").verifies(signature, RECORD)
    assert not LedgerKey("another-secret-of-mine").verifies(signature, RECORD)
    assert not LedgerKey().verifies(signature, RECORD)


@pytest.mark.parametrize(
    "other",
    [
        ("ledger2", "id", 3, (7, 1), "run:x", "value"),
        ("ledger", "id2", 3, (7, 1), "run:x", "value"),
        ("ledger", "", 3, (7, 1), "run:x", "valueid"),
        ("ledger", "id", 2, (7, 1), "run:x", "value"),
        ("ledger", "id", 3, (8, 1), "run:x", "value"),
        ("ledger", "id", 3, (7, 2), "run:x", "value"),
        ("ledger", "id", 3, (7, 1), "run:y", "value"),
        ("ledger", "id", 3, (7, 1), "run:x", "value2"),
        ("ledger", "id", 3, (7, 1), "run:xv", "alue"),
        ("ledger", "id", 3, (7, 1), "run:x", ""),
        ("ledger", "id", 3, (7, 1), "run:x", None),
    ],
)
def test_each_part_is_signed(other) -> None:
    """A tombstone also differs from an empty value."""
    key, record = LedgerKey(SECRET), SignedRecord(*other)
    assert not key.verifies(key.sign(RECORD), record)
    assert not key.verifies(key.sign(record), RECORD)
    assert key.verifies(key.sign(record), record)


@pytest.mark.parametrize("signature", [None, b"", b"x" * 32])
def test_what_is_no_signature_is_none(signature) -> None:
    """Whatever the header contains."""
    assert not LedgerKey(SECRET).verifies(signature, RECORD)


def test_without_a_secret_nothing_is_signed() -> None:
    """Blanks are not a secret."""
    assert LedgerKey(" ").sign(RECORD) is None


def test_a_short_secret_is_refused_and_not_shown() -> None:
    """It could be guessed from any record."""
    with pytest.raises(ConfigurationError, match="fewer than 16 characters") as refused:
        LedgerKey("too-short")
    assert "too-short" not in str(refused.value)


def test_the_secret_is_in_no_repr() -> None:
    """This holds for every object that has it."""
    for holder in (LedgerKey(SECRET), SPEC, SPEC.ledger, SPEC.deployment, Deployment({}, SPEC.ledger)):
        assert SECRET not in repr(holder)


def test_the_secret_reaches_a_driver_in_another_process() -> None:
    """In the specification, which is as private as the client settings in it."""
    assert spec_from_json(spec_to_json(SPEC)) == SPEC
    assert spec_from_json(spec_to_json(SPEC)).ledger.key == SECRET
    assert replace(SPEC.ledger, topic="other").key == SECRET


def test_what_is_signed_from_where() -> None:
    """Written and read, that of version 1 too; anything else is an error that names the record."""
    signed = SignedFrom({1: 5, 0: 7})
    assert SignedFrom.from_json(signed.to_json(), "k") == signed
    assert signed.of(1) == 5
    assert signed.of(2) == 0
    assert SignedFrom.from_json('{"v":1,"from":{"0":7}}', "k") == SignedFrom({0: 7})
    for value in ("", "{}", '{"v":1}', '{"v":1,"from":{"x":1}}', '{"v":1,"from":{"0":"1"}}', '{"v":3}'):
        with pytest.raises(LedgerUnreadable, match="'k'"):
            SignedFrom.from_json(value, "k")
