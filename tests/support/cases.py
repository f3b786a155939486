"""Cases of one law: the first ones stand in ``make test``, the others repeat it in ``make chaos``."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def rest_in_chaos(kept: int, cases: Iterable[object]) -> list[object]:
    """Return cases for ``parametrize``, those behind the first ones marked.

    :param kept: how many cases ``make test`` has.
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
