"""Changes to the Spark Connect client during the jobs of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import grpc
from grpc_status import rpc_status

from airflow_eos.spark.address import is_on_this_host
from airflow_eos.spark.session import Restore, changed

_SEARCHED = (
    "INVALID_CURSOR.DISCONNECTED",
    "INVALID_HANDLE.OPERATION_NOT_FOUND",
    "INVALID_HANDLE.SESSION_NOT_FOUND",
)
_STATUS = "grpc-status-details-bin"


def executed_once(client: Any) -> AbstractContextManager[None]:
    """Keep the client from sending an execution twice in this block (law 1).

    Reattachable execution sends ExecutePlan again if the server has lost the operation, and retry policies
    send any request again. Both are switched off for this client.
    """
    return changed((id(client), "repetition"), partial(_switch_repetition_off, client))


def distinct_errors(client: Any) -> AbstractContextManager[None]:
    """Keep the client from taking a quoted error condition for the server's own, in this block.

    It searches the whole text of an error for the conditions of a lost operation, session or connection, and
    then executes the plan again, forever. A record or an author's exception may contain them.
    """
    if client.is_closed:
        return nullcontext()
    return changed((id(client), "errors"), partial(_reword_errors, client))


def _switch_repetition_off(client: Any) -> Restore:
    policies, reattach = client.get_retry_policies(), client._use_reattachable_execute  # noqa: SLF001
    client.disable_reattachable_execute()
    client.set_retry_policies([])

    def restore() -> None:
        client.set_retry_policies(policies)
        if reattach:
            client.enable_reattachable_execute()

    return restore


def _reword_errors(client: Any) -> Restore:
    stub = client._stub  # noqa: SLF001
    client._stub = _Stub(stub)  # noqa: SLF001
    return partial(setattr, client, "_stub", stub)


def retry_soon(client: Any, address: str) -> None:
    """Let the client of a server on this host retry every two seconds, for a minute.

    By default it waits up to a minute between tries, for ten minutes. A server on this host is back within
    seconds or not at all.

    :param address: ``sc://host:port/;...``; other addresses and hosts change nothing.
    """
    if not (address.startswith("sc://") and is_on_this_host(address)):
        return
    from pyspark.sql.connect.client.retries import DefaultPolicy

    client.set_retry_policies([DefaultPolicy(max_retries=35, backoff_multiplier=2.0, max_backoff=2_000)])


class _Stub:
    """The requests of Spark Connect; errors of executions that quote a searched condition are reworded.

    Lazy checkpoints become eager: until a job has filled one, two tasks may evaluate its DataFrame side by
    side, and nothing shows it.
    """

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def __getattr__(self, request: str) -> Any:
        call = getattr(self._stub, request)
        if request not in ("ExecutePlan", "ReattachExecute"):
            return call
        return lambda message, **options: _answers(call(_eager(message), **options))


def _eager(message: Any) -> Any:
    if hasattr(message, "plan") and message.plan.command.HasField("checkpoint_command"):
        message.plan.command.checkpoint_command.eager = True
    return message


def _answers(call: Any) -> Iterator[Any]:
    try:
        yield from call
    except grpc.RpcError as error:
        status = rpc_status.from_call(error)
        if status is None or not (quoted := _quoted_in(status.message)):
            raise
        for condition in quoted:
            status.message = status.message.replace(condition, condition.replace(".", ". "))
        raise _RewordedError(error, status) from error


def _quoted_in(message: str) -> list[str]:
    """Return the conditions that an error quotes; none if the text begins with one, the error's own."""
    quoted = [condition for condition in _SEARCHED if condition in message]
    return [] if message.startswith(tuple(f"[{condition}]" for condition in quoted)) else quoted


class _RewordedError(grpc.RpcError):
    """An error of a call with another message."""

    def __init__(self, error: Any, status: Any) -> None:
        super().__init__(status.message)
        self._error, self._status = error, status

    def __getattr__(self, member: str) -> Any:
        return getattr(self._error, member)

    def details(self) -> str:
        return str(self._status.message)

    def trailing_metadata(self) -> tuple[tuple[str, Any], ...]:
        return tuple(
            (key, self._status.SerializeToString() if key == _STATUS else value)
            for key, value in self._error.trailing_metadata()
        )
