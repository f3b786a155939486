"""Headers that name the run of a record, so that consumers can recognise repetitions.

=====================  ===================================================================================
``eos.run``            the run's key in the ledger, as ``airflow eos ledger`` shows it
``eos.reprocessing``   of a reprocessing: its number, from 1
=====================  ===================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.ledger import keys

if TYPE_CHECKING:
    from airflow_eos.model.spec import RunSpec

RUN = "eos.run"
REPROCESSING = "eos.reprocessing"


def headers(spec: RunSpec, key: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of every record of a run, by ``spec.mark_output``.

    :param key: of the run, or of its reprocessing.
    """
    number = keys.reprocessing_number(key)
    if spec.mark_output == "never" or (spec.mark_output == "reprocessed" and number is None):
        return ()
    named = ((RUN, key),)
    return named if number is None else (*named, (REPROCESSING, str(number)))
