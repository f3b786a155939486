"""Splits the cases of a test: the first ones run in ``make test``, the others in ``make chaos``."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def rest_in_chaos(kept: int, cases: Iterable[object]) -> list[object]:
    """Return cases for ``parametrize``, all after the first ones marked with ``chaos``.

    :param kept: number of cases in ``make test``.
    :param cases: arguments of each case: a tuple of several, or one value.
    """
    every = list(cases)
    return [
        *every[:kept],
        *(
            pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.chaos)
            for case in every[kept:]
        ),
    ]
