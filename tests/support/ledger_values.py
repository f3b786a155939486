"""Texts of ledger values."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_eos.model.ledger import LedgerEntry, LedgerValue


def texts(values: Mapping[str, LedgerValue]) -> dict[str, str]:
    """Return the text of each value, without its position."""
    return {key: value.text for key, value in values.items()}


def text_of(entry: LedgerEntry) -> str | None:
    """Return the text of an entry's value; None for a tombstone or a marker."""
    return None if entry.value is None else entry.value.text
