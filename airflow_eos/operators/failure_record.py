"""The XCom of a failed try for the web page: the class of its error and the first sentence of its message.

Airflow keeps the state of a try, not its exception, and deletes the XCom when the next try starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_eos.printable import printable

FAILURE_KEY = "airflow_eos_failure"
"""Key of the XCom."""
VERSION = 1
MAX_SENTENCE = 500
"""Characters of a sentence that are kept."""
_MAX_ERROR = 100
_END_OF_SENTENCE = re.compile(r"\n|(?<=[.!?])\s+(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """The failure of one try of a task.

    :param try_number: number of the try, from 1.
    :param error: name of the exception's class.
    :param sentence: first sentence of its message, with secrets redacted; untrusted text.
    """

    try_number: int
    error: str
    sentence: str

    @classmethod
    def of(cls, error: BaseException, try_number: int) -> FailureRecord:
        """Describe an exception; redacts the secrets that Airflow masks in logs."""
        from airflow.sdk.log import redact

        message = str(redact(str(error)))  # before it is cut: half a secret would not be recognised
        return cls(try_number, type(error).__name__[:_MAX_ERROR], first_sentence(message))

    def to_value(self) -> dict[str, Any]:
        """Return the XCom's value."""
        return {"v": VERSION, **asdict(self)}

    @classmethod
    def from_value(cls, value: Any) -> FailureRecord | None:
        """Read an XCom's value; None if it is not a failure record: anybody may write an XCom."""
        if not isinstance(value, Mapping) or value.get("v") != VERSION:
            return None
        number, error, sentence = (value.get(name) for name in ("try_number", "error", "sentence"))
        if type(number) is not int or not isinstance(error, str) or not isinstance(sentence, str):
            return None
        return cls(number, printable(error[:_MAX_ERROR]), printable(sentence[: MAX_SENTENCE + 1]))


def first_sentence(message: str) -> str:
    """Return the first sentence of a message, on one line, :data:`MAX_SENTENCE` characters at most."""
    sentence = _END_OF_SENTENCE.split(message.strip(), maxsplit=1)[0].strip()
    if len(sentence) > MAX_SENTENCE:
        sentence = f"{sentence[: MAX_SENTENCE - 1]}…"
    return printable(sentence)
