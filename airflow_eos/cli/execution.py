"""Runs a command: target, output, errors, exit code; shared by both command lines."""

from __future__ import annotations

import logging
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from airflow_eos.cli.definition import INTERRUPTED, REFUSED, USAGE, Command
from airflow_eos.cli.outcome import (
    DOCUMENTS,
    Outcome,
    WrongUsage,
    document,
    printing_to_stderr,
    write,
    write_error,
)
from airflow_eos.exceptions import EosError
from airflow_eos.model.spec import Deployment

log = logging.getLogger(__name__)

_MODULES = ("airflow_eos.cli.spark_commands", "airflow_eos.cli.status", "airflow_eos.cli.commands")
"""Imported in this order until one has the command: Spark's commands need no Kafka clients."""


def carry_out(
    command: Command, options: Namespace, find_target: Callable[[Namespace], Deployment | None]
) -> int:
    """Run one command, print its outcome, and return the exit code.

    An error is one line on standard error. With ``--output json`` or ``yaml``, standard output is an object
    with the only key ``error``.

    :param find_target: returns the deployment; None for a command without brokers.
    """
    width = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
    try:
        # The others connect to nothing; one of them prints its outcome and then becomes a server.
        with printing_to_stderr() if command.cluster else nullcontext():
            outcome = call(command.name, find_target(options), options)
            text = outcome.render(options.output, width)
    except WrongUsage as error:
        write_error(f"{command.name}: {error}")
        return USAGE
    except KeyboardInterrupt:
        write_error(f"{command.name}: interrupted")
        return INTERRUPTED
    except Exception as error:
        log.debug("%s", command.name, exc_info=True)
        message, docs = (
            (error.message, error.documentation) if isinstance(error, EosError) else (str(error), None)
        )
        kind = type(error).__name__
        if options.output in DOCUMENTS:
            facts = {"type": kind, "message": message, "docs": docs}
            write(document({"error": facts}, options.output))
        write_error(f"{kind}: {error}")
        return REFUSED
    write(text)
    return outcome.code


def call(name: str, target: Deployment | None, options: Namespace) -> Outcome:
    """Run the function with the command's name.

    Its module is imported here, so that a library that cannot be loaded is an error of the command.
    """
    named = name.replace("-", "_")
    modules = map(import_module, _MODULES)
    function: Any = next(getattr(module, named) for module in modules if hasattr(module, named))
    outcome: Outcome = function(target, options)
    return outcome
