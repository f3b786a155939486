"""The command line that reaches a deployment, for commands that are shown."""

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
        given = [(flag, value) for flag, value in options.items() if value]
        return cls(program, tuple(word for option in given for word in option))

    def command(self, name: str, *arguments: str) -> str:
        """Return a command of the program for a POSIX shell."""
        return f"{self.program} {shlex.join((name, *arguments, *self.options))}"
