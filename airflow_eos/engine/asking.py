"""Questions to a cluster and its ledger that belong to no run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_eos.model.spec import DEFAULT_PREFIX, LedgerSettings, RunSpec


def asking(
    kafka: Mapping[str, Any], settings: LedgerSettings | None = None, prefix: str = DEFAULT_PREFIX
) -> RunSpec:
    """Return a spec that only carries a connection and ledger settings, for a control plane without a run."""
    return RunSpec(
        kafka=kafka,
        pipeline=DEFAULT_PREFIX,
        run_id="ledger",
        source_topics=("none",),
        group_id=DEFAULT_PREFIX,
        prefix=prefix,
        ledger=settings or LedgerSettings(),
    )
