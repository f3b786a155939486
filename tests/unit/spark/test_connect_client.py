"""Errors of a Spark Connect server, as PySpark's own client sees them: a gRPC server returns them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import pytest
from google.rpc import status_pb2
from grpc_status import rpc_status
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from pyspark.sql.connect.client.retries import DefaultPolicy, Retrying
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from airflow_eos.spark.connect_client import distinct_errors

ENOUGH = 3
"""Executions after which the server stops a client that would otherwise loop for ever."""


class Server(base_pb2_grpc.SparkConnectServiceServicer):
    """Fails the executions of a plan with one message, and counts them."""

    def __init__(self, message, *, responses=0):
        self.message, self.responses, self.executions, self.reattached = message, responses, 0, 0
        self.plan = None

    def ExecutePlan(self, request, context):  # noqa: N802 - gRPC's name
        self.executions += 1
        self.plan = request.plan
        if self.executions >= ENOUGH:
            yield base_pb2.ExecutePlanResponse(result_complete={})
            return
        for number in range(self.responses):
            yield base_pb2.ExecutePlanResponse(response_id=f"r{number}", operation_id=request.operation_id)
        self._fail(context)

    def ReattachExecute(self, request, context):  # noqa: N802
        del request
        self.reattached += 1
        self._fail(context)
        yield

    def ReleaseExecute(self, request, context):  # noqa: N802
        del request, context
        return base_pb2.ReleaseExecuteResponse()

    def _fail(self, context):
        status = status_pb2.Status(code=grpc.StatusCode.INTERNAL.value[0], message=self.message)
        context.abort_with_status(rpc_status.to_status(status))


@pytest.fixture
def execute():
    """Return a function that executes a plan on a server and returns the client's error."""
    with ThreadPoolExecutor() as pool:
        started = []

        def of(service, *, distinct=True, plan=None):
            server = grpc.server(pool)
            base_pb2_grpc.add_SparkConnectServiceServicer_to_server(service, server)
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            started.append(server)
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                client = SimpleNamespace(
                    is_closed=False, _stub=base_pb2_grpc.SparkConnectServiceStub(channel)
                )
                own = client._stub
                if not distinct:
                    return run(client, plan)
                with distinct_errors(client), distinct_errors(client):
                    error = run(client, plan)
                assert client._stub is own
                return error

        yield of
        for server in started:
            server.stop(0).wait()


def run(client, plan):
    policy = DefaultPolicy(max_retries=2, initial_backoff=1, max_backoff=1)
    request = base_pb2.ExecutePlanRequest(session_id="session", plan=plan)
    responses = ExecutePlanResponseReattachableIterator(request, client._stub, lambda: Retrying(policy), [])
    try:
        for _ in responses:
            pass
    except Exception as error:
        return error
    return None


QUOTED = [
    "ValueError: INVALID_HANDLE.SESSION_NOT_FOUND",
    "[CAST_INVALID_INPUT] The value 'INVALID_HANDLE.OPERATION_NOT_FOUND' of \"STRING\" cannot be cast",
    "[OPERATION_CANCELED] [INVALID_HANDLE.SESSION_NOT_FOUND] INVALID_CURSOR.DISCONNECTED",
]


@pytest.mark.parametrize("message", QUOTED, ids=["session", "operation", "both"])
@pytest.mark.parametrize("responses", [0, 2], ids=["at once", "after responses"])
def test_an_error_that_quotes_another_is_itself(execute, message, responses):
    """The plan is executed once, and the error is the server's, with its code and message."""
    server = Server(message, responses=responses)
    error = execute(server)
    assert isinstance(error, grpc.RpcError)
    assert (error.code(), server.executions, server.reattached) == (grpc.StatusCode.INTERNAL, 1, 0)
    status = rpc_status.from_call(error)
    assert status.message.replace(". ", ".") == message == str(error).replace(". ", ".")


@pytest.mark.parametrize("message", QUOTED[:2], ids=["session", "operation"])
def test_the_client_alone_executes_the_plan_again(execute, message):
    """The same server without this package: it has to stop the loop itself."""
    server = Server(message)
    assert execute(server, distinct=False) is None
    assert server.executions == ENOUGH


def test_an_operation_that_the_server_has_lost_is_executed_again(execute):
    """The request never reached the server: PySpark's client behaves as always."""
    server = Server("[INVALID_HANDLE.OPERATION_NOT_FOUND] The handle is invalid. SQLSTATE: HY000")
    assert execute(server) is None
    assert server.executions == ENOUGH


def test_other_errors_pass_unchanged(execute):
    """They are not wrapped."""
    server = Server("[DIVIDE_BY_ZERO] Division by zero.")
    error = execute(server)
    assert (server.executions, rpc_status.from_call(error).message) == (1, server.message)
    assert type(error).__module__ == "grpc._channel"


@pytest.mark.parametrize("during_a_run", [True, False])
def test_a_lazy_checkpoint_is_made_eager(execute, during_a_run):
    """Tasks that read a lazy one may each evaluate its DataFrame; other plans are sent unchanged."""
    server = Server("failed")
    execute(server, distinct=during_a_run, plan={"command": {"checkpoint_command": {"local": True}}})
    assert server.plan.command.checkpoint_command.local
    assert server.plan.command.checkpoint_command.eager is during_a_run
    read = {"root": {"local_relation": {"schema": "id long"}}}
    execute(server, distinct=during_a_run, plan=read)
    assert server.plan == base_pb2.Plan(**read)
