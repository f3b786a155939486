"""Cases of one rule: ``make test`` runs the first ones, ``make chaos`` the others, too."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def rest_in_chaos(kept: int, cases: Iterable[object]) -> list[object]:
    """Return cases for ``parametrize``, those after the first ones marked.

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
