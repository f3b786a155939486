"""Runs a command: target, output, errors, exit code; shared by both command lines."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from airflow_eos.cli import commands, spark_commands, status
from airflow_eos.cli.definition import REFUSED, USAGE, Command
from airflow_eos.cli.outcome import DOCUMENTS, Outcome, WrongUsage, document, write, write_error
from airflow_eos.exceptions import EosError
from airflow_eos.model.spec import Deployment

_MODULES = (commands, status, spark_commands)


def carry_out(command: Command, options: Namespace, find_target: Callable[[Namespace], Deployment]) -> int:
    """Run one command, print its outcome, and return the exit code.

    An error is one line on standard error. With ``--output json`` or ``yaml``, standard output is an object
    with the only key ``error``.
    """
    try:
        target = find_target(options) if command.cluster else None
        outcome = call(command.function, target, options)
    except WrongUsage as error:
        write_error(f"{command.name}: {error}")
        return USAGE
    except EosError as error:
        kind = type(error).__name__
        if options.output in DOCUMENTS:
            facts = {"type": kind, "message": error.message, "docs": error.documentation}
            write(document({"error": facts}, options.output))
        write_error(f"{kind}: {error}")
        return REFUSED
    width = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
    write(outcome.render(options.output, width))
    return outcome.code


def call(name: str, target: Deployment | None, options: Namespace) -> Outcome:
    """Run a command by the name of its function."""
    function: Any = next(getattr(module, name) for module in _MODULES if hasattr(module, name))
    outcome: Outcome = function(target, options)
    return outcome
