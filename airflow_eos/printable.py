"""Text that others chose, as a terminal and a log may show it."""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    """Escape what is no visible character or space, as Python's ``repr`` does.

    Names of groups and transactional ids, ledger records, messages of brokers and what a transform quotes may
    hold anything: a terminal would obey escape sequences (ESC, or C1 as U+009B), overwrite a line (CR), begin
    one (LF) or turn its order round (U+202E).

    :param keep: characters to leave as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode("ascii")
        for one in text
    )
