"""The command line that reaches a deployment, for commands that are shown to users."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A program and the options that name a cluster, its ledger and its prefix to it.

    :param program: ``airflow eos`` or ``python -m airflow_eos``.
    :param options: such as ``("--conn-id", "kafka_eu")``; no secrets.
    """

    program: str = "airflow eos"
    options: tuple[str, ...] = ()

    @classmethod
    def of(cls, program: str, options: Mapping[str, str | None]) -> CommandLine:
        """Return the command line with the options that have a value."""
        return cls(program, _words({flag: value for flag, value in options.items() if value}))

    def command(self, name: str, options: Mapping[str, str]) -> str:
        """Return a command of the program for a POSIX shell."""
        return f"{self.program} {shlex.join((name, *_words(options), *self.options))}"


def _words(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return options as words; a parser takes a value that begins with a hyphen for another option."""
    pairs = ((f"{flag}={value}",) if value[:1] == "-" else (flag, value) for flag, value in options.items())
    return tuple(word for pair in pairs for word in pair)
