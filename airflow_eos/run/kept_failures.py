"""What a failure that is kept may hold on to."""

from __future__ import annotations

import traceback


def clear_frames(failure: BaseException) -> None:
    """Clear the frames of a failure and of its causes; its lines stay.

    The failure outlives its attempt. Its frames would keep the producer that failed alive as well, polled by
    nobody, while its events pile up in memory.
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
