"""Triggers call Airflow from threads, over the one connection that the triggerer has to its supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import msgspec
import pytest
from airflow.jobs.triggerer_job_runner import TriggerCommsDecoder
from airflow.sdk.execution_time.comms import GetVariable, VariableResult

from airflow_eos.compat import AIRFLOW_VERSION, to_thread

QUESTIONS = 30


@pytest.mark.process
def test_each_thread_gets_the_answer_to_its_own_question() -> None:
    """Meanwhile the triggerer itself sends requests, as it always does.

    In a separate process: a thread could not be ended if it waits for an answer that another one got.
    """
    subprocess.run([sys.executable, __file__], check=True, timeout=60)


async def ask() -> None:
    """Ask in threads and in the event loop; each answer is the name that was asked for."""
    async with triggerer() as comms:

        def in_a_thread(name: str) -> str:
            return comms.send(GetVariable(key=name)).value

        async def in_the_event_loop() -> list[str]:
            return [(await comms.asend(GetVariable(key=name))).value for name in own]

        own = [f"triggerer-{number}" for number in range(QUESTIONS)]
        names = [f"trigger-{number}" for number in range(QUESTIONS)]
        answers = await asyncio.gather(
            in_the_event_loop(), *(to_thread("test", in_a_thread, name) for name in names)
        )
        assert answers == [own, *names]


@contextlib.asynccontextmanager
async def triggerer() -> AsyncIterator[TriggerCommsDecoder]:
    """Yield a triggerer's side of the connection; the other side answers."""
    supervisor, own = socket.socketpair()
    tasks = [asyncio.create_task(answer(supervisor))]
    reader, writer = await asyncio.open_connection(sock=own)
    comms = TriggerCommsDecoder(socket=own, async_reader=reader, async_writer=writer)
    if AIRFLOW_VERSION >= (3, 2):
        await comms.start_reader()
        tasks.append(comms._reader_task)
    try:
        yield comms
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()


async def answer(supervisor: socket.socket) -> None:
    """Answer each request for a variable with its name, as the triggerer's supervisor does."""
    reader, writer = await asyncio.open_connection(sock=supervisor)
    try:
        while True:
            length = int.from_bytes(await reader.readexactly(4), "big")
            request_id, request, *_ = msgspec.msgpack.decode(await reader.readexactly(length))
            result = VariableResult(key=request["key"], value=request["key"])
            response = msgspec.msgpack.encode([request_id, result.model_dump()])
            writer.write(len(response).to_bytes(4, "big") + response)
    finally:
        writer.close()


if __name__ == "__main__":
    asyncio.run(ask())
