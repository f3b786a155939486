"""The page's findings about brokers."""

from __future__ import annotations

import pytest

from airflow_eos.model.kafka import BrokerFeatures
from airflow_eos.operations.health import default_timeouts


@pytest.mark.parametrize(("allowed_ms", "status"), [(60_000, "warn"), (900_000, "ok"), (None, "unknown")])
def test_brokers_that_allow_less_than_the_default_time_out_are_a_warning(allowed_ms, status):
    """Each task may have set a shorter one."""
    (check,) = default_timeouts(lambda: BrokerFeatures(True, allowed_ms, None))
    assert (check.name, check.status) == ("time-outs", status)
