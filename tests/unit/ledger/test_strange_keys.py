"""Records of other clients count if they may have replaced one of ours, and not otherwise."""

from __future__ import annotations

import pytest

from airflow_eos.exceptions import LedgerTampered
from airflow_eos.ledger.authority import nothing_is_forged


@pytest.mark.parametrize("moment", ["zzz", "", "2026-01-01", "2026-01-01T00:00:00+00:00", "9" * 30])
def test_a_boundary_of_no_moment_stops_nothing(moment: str) -> None:
    """No run writes such a key, so none of ours can be missing for it."""
    nothing_is_forged(0, {f"boundary:orders/{moment}": 7}, {})


@pytest.mark.parametrize("key", ["boundary:orders/2026-01-01T00:00:00.000Z", "run:p/r", "cursor:g"])
def test_a_key_that_runs_write_stops_them(key: str) -> None:
    """Counter-test: compaction may have removed ours."""
    with pytest.raises(LedgerTampered):
        nothing_is_forged(0, {key: 7}, {})
