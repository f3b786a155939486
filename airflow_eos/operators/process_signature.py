"""Reads the parameters of a ``process`` without importing its file, and checks calls of it."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.kinds import did_you_mean

RUN = "run"
_KEEP_THE_SIGNATURE = ("arrow_process",)
_HIDES_NAMES = ("__getattr__", "exec", "eval", "globals", "setattr", "vars")
_FORMS = "'package.module:function' or 'path/to/file.py:function'"


def parts_of(process: str) -> tuple[str, str]:
    """Return module or file, and function; raises ConfigurationError for any other text."""
    place, _, name = process.rpartition(":")
    if not place or not name.isidentifier():
        raise ConfigurationError(f"process {process!r} must be {_FORMS}")
    return place, name


def signature_of(process: Callable[..., Any] | str, folders: Iterable[Path]) -> inspect.Signature | None:
    """Return the signature of a process; None if only an import can determine it.

    :param folders: folders that a path may be relative to; errors name the first one.
    :raises ConfigurationError: there is no such file, it is not Python, or it has no such function.
    """
    if callable(process):
        try:
            return inspect.signature(process)
        except (TypeError, ValueError):
            return None
    place, name = parts_of(process)
    if not place.endswith(".py"):
        return None
    wanted = [(folder / place).resolve() for folder in folders]
    path = next((candidate for candidate in wanted if candidate.is_file()), None)
    if path is None:
        raise ConfigurationError(
            f"process {process!r}: there is no file {wanted[0]}; a path is relative to the folder of the Dag "
            "file"
        )
    return _in_file(str(path), path.stat().st_mtime_ns, name, process)


def folders_of(dag_file: str) -> list[Path]:
    """Return the folders that a path may be relative to while a Dag is created.

    If a function of another module creates a Dag, Airflow sets the Dag's file only after parsing: therefore
    the folders of all files that are being executed count, too.
    """
    folders = [Path(dag_file).parent]
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            folders.append(Path(frame.f_code.co_filename).parent)
        frame = frame.f_back
    return list(dict.fromkeys(folders))


@functools.lru_cache(maxsize=64)
def _in_file(path: str, _changed: int, name: str, process: str) -> inspect.Signature | None:
    try:
        tree = ast.parse(Path(path).read_bytes(), filename=path)
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(f"process {process!r}: {path} is not Python: {error}") from error
    bound: dict[str, list[ast.AST]] = {}
    for key, node in _bindings(tree.body):
        bound.setdefault(key, []).append(node)
    if name not in bound:
        uses = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | bound.keys()
        if "*" in bound or not uses.isdisjoint(_HIDES_NAMES):
            return None
        raise ConfigurationError(
            f"process {process!r}: {path} has no function {name!r}{did_you_mean(name, bound)}"
        )
    statement = bound[name][0] if len(bound[name]) == 1 else None
    if not isinstance(statement, ast.FunctionDef) or not all(map(_keeps_signature, statement.decorator_list)):
        return None
    return _signature(statement.args)


def _bindings(body: Iterable[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names that a module's statements bind; ``*`` for a star import."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node
        elif not isinstance(node, ast.Lambda):
            yield from _bindings(ast.iter_child_nodes(node))


def _keeps_signature(decorator: ast.expr) -> bool:
    name = decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
    return name in _KEEP_THE_SIGNATURE


def _signature(arguments: ast.arguments) -> inspect.Signature:
    """Return the signature without annotations and with None for every default."""
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(None) for default in arguments.kw_defaults]
    function = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, ast.Constant(None))))
    return inspect.signature(eval(compile(function, "process", "eval")))  # noqa: S307 - evaluates no code


def check_call(signature: inspect.Signature, given: Iterable[str]) -> None:
    """Check that a run can call a process with the DataFrame, the run if it takes one, and ``op_kwargs``.

    :param given: names of ``op_kwargs``.
    :raises ConfigurationError: an argument is unknown, is given by the run itself, or is missing.
    """
    parameters = list(signature.parameters.values())
    positional = [
        param for param in parameters if param.kind in (param.POSITIONAL_ONLY, param.POSITIONAL_OR_KEYWORD)
    ]
    takes_any = any(param.kind is param.VAR_KEYWORD for param in parameters)
    by_name = {
        param.name for param in parameters if param.kind in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY)
    }
    frame = positional[0].name if positional else None
    for name in given:
        if name in (frame, RUN) and name in by_name:
            raise ConfigurationError(
                f"op_kwargs gives {name!r} to process{signature}, which it gets from the run; leave it out"
            )
        if name not in by_name and not takes_any:
            names = sorted(by_name - {frame, RUN})
            raise ConfigurationError(
                f"op_kwargs gives {name!r} to process{signature}, which has no such parameter"
                f"{did_you_mean(name, names)}"
            )
    if frame is None and not any(param.kind is param.VAR_POSITIONAL for param in parameters):
        raise ConfigurationError(
            f"process{signature} takes no DataFrame; it must be callable as process(df) or process(df, run)"
        )
    needed = [
        param.name
        for param in parameters
        if param.default is param.empty and param.kind not in (param.VAR_POSITIONAL, param.VAR_KEYWORD)
    ]
    missing = [name for name in needed if name not in (frame, RUN, *given)]
    # A second parameter without a default gets the run, whatever it is called.
    second = positional[1].name if len(positional) > 1 and RUN not in by_name else None
    if [name for name in missing if name != second]:
        raise ConfigurationError(
            f"process{signature} needs {', '.join(map(repr, missing))}, which nothing gives: it must be "
            "callable as process(df) or process(df, run), with op_kwargs for the other parameters"
        )
