"""Makes untrusted text safe for terminals and logs."""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    """Escape every character that is not printable, as Python's ``repr`` does.

    Names of groups and transactional ids, ledger records, messages of brokers and what a transform quotes may
    contain any character: a terminal would obey escape sequences (ESC, or C1 as U+009B), overwrite a line
    (CR), begin another one (LF) or reverse its order (U+202E).

    :param keep: characters to leave as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
