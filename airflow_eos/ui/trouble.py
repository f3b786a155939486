"""Errors of the pages' queries, without details of the connection."""

from __future__ import annotations

import logging

from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokersUnavailable,
    ConfigurationError,
    EosError,
    LedgerMissing,
    LedgerReplaced,
)

log = logging.getLogger(__name__)

TOO_MANY = 429
"""HTTP status for a user with too many waiting queries."""


class Trouble(Exception):
    """A query without a result; the message is for the page."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(title)
        self.status, self.title, self.text = status, title, text

    def to_dict(self) -> dict[str, str]:
        """Return the JSON form."""
        return {"detail": self.text, "title": self.title}


def trouble_of(error: Exception) -> Trouble:
    """Return the page's error for an exception; the log has the details."""
    if isinstance(error, Trouble):
        return error
    log.warning("A page has no answer", exc_info=error)
    if isinstance(error, LedgerMissing):
        text = "Where there never was one the first run makes it, or `airflow eos init`."
        return Trouble(404, "There is no ledger", text)
    if isinstance(error, LedgerReplaced):
        text = "Its topic is gone, or is not the one that was used before. `airflow eos doctor` says more."
        return Trouble(502, "The ledger is lost or was replaced", text)
    if isinstance(error, AuthorizationFailed):
        text = "The page needs Read on the ledger and on sinks, Describe on sources and transactional ids."
        return Trouble(502, "The brokers refuse it", text)
    if isinstance(error, BrokersUnavailable):
        return Trouble(502, "The brokers cannot be reached", "That says nothing about any run.")
    if isinstance(error, ConfigurationError):
        text = "See [eos] ui_kafka_config_id, and the API server's log."
        return Trouble(500, "The page's connection cannot be used", text)
    kind = type(error).__name__ if isinstance(error, EosError) else "an unexpected error"
    return Trouble(502, "There is no answer", f"The API server's log has the reason ({kind}).")
