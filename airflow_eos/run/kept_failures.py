"""Clears the frames of a stored exception, so that it does not keep the failed producer alive."""

from __future__ import annotations

import traceback


def clear_frames(failure: BaseException) -> None:
    """Clear the frames of a failure and of its causes; its line numbers stay.

    The failure outlives its attempt. Its frames would keep the failed producer alive, unpolled, while its
    events fill the memory.
    """
    chain: list[BaseException | None] = [failure]
    seen: set[int] = set()
    while chain:
        error = chain.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        chain += [error.__cause__, error.__context__]
