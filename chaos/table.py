"""The fault table: which fault can be injected at which state, and why not at others."""

from __future__ import annotations

import enum
from typing import NamedTuple

from airflow_eos.run.states import State
from airflow_eos_testing.faults import TABLE_STATES


class Fault(str, enum.Enum):
    """A fault to inject into a run that is held at a state."""

    BROKER = "broker leader SIGKILL"
    COORDINATOR = "coordinator broker SIGKILL"
    ALL_REPLICAS = "all sink replicas SIGKILL"
    DISK = "log directory full"
    DRIVER = "driver SIGKILL"
    ZOMBIE = "driver SIGSTOP zombie"
    EXECUTOR = "executor SIGKILL"
    PRODUCE_ACK = "lost Produce ack"
    END_TXN_ACK = "lost EndTxn ack"
    AIRFLOW_TASK = "Airflow task SIGKILL"


BROKER_FAULTS = frozenset({Fault.BROKER, Fault.COORDINATOR, Fault.ALL_REPLICAS, Fault.DISK})
"""Faults that take brokers down: no other broker is killed meanwhile."""


class Cell(NamedTuple):
    """One cell of the table."""

    fault: Fault
    state: State

    def __str__(self) -> str:
        return f"{self.fault.value} at {self.state.value}"


_NO_PRODUCE = "no Produce request before the next state"
_NO_TRANSACTION = "no open transaction, so no EndTxn"
_ENDED = "EndTxn was answered before"

UNREACHABLE: dict[Cell, str] = {
    **{
        Cell(Fault.PRODUCE_ACK, state): _NO_PRODUCE
        for state in TABLE_STATES
        if state not in (State.OPEN, State.WRITTEN)
    },
    **{
        Cell(Fault.END_TXN_ACK, state): _NO_TRANSACTION
        for state in (State.FENCED, State.PLANNED, State.SEALED)
    },
    Cell(Fault.END_TXN_ACK, State.COMMITTED): _ENDED,
}
"""Impossible cells, with the reason: the event that the fault needs does not happen there."""

_TURNS = (
    Fault.BROKER,
    Fault.DISK,
    Fault.DRIVER,
    Fault.EXECUTOR,
    Fault.COORDINATOR,
    Fault.ALL_REPLICAS,
    Fault.PRODUCE_ACK,
    Fault.AIRFLOW_TASK,
    Fault.ZOMBIE,
    Fault.END_TXN_ACK,
)
CELLS: tuple[Cell, ...] = tuple(
    cell for state in TABLE_STATES for fault in _TURNS if (cell := Cell(fault, state)) not in UNREACHABLE
)
"""Every reachable cell, in the order in which they run.

State by state: a lost driver, executor or broker is replaced while the next cells need other resources.
"""

SHORT: tuple[Cell, ...] = (
    Cell(Fault.DRIVER, State.OPEN),
    Cell(Fault.ZOMBIE, State.WRITTEN),
    Cell(Fault.ZOMBIE, State.PROVEN),
    Cell(Fault.PRODUCE_ACK, State.OPEN),
    Cell(Fault.END_TXN_ACK, State.PROVEN),
    Cell(Fault.END_TXN_ACK, State.OPEN),
    Cell(Fault.COORDINATOR, State.PROVEN),
    Cell(Fault.BROKER, State.OPEN),
    Cell(Fault.DRIVER, State.COMMITTED),
)
"""The cells of the short campaign: those that a change is most likely to break."""


def cell_of(text: str) -> Cell:
    """Parse ``<fault name>:<state>``, such as ``ZOMBIE:WRITTEN``.

    :raises ValueError: the cell does not exist, or cannot be reached.
    """
    fault, _, state = text.partition(":")
    if fault not in Fault.__members__ or state not in State.__members__:
        raise ValueError(f"{text!r} is not FAULT:STATE; faults are {', '.join(Fault.__members__)}")
    cell = Cell(Fault[fault], State[state])
    if cell not in CELLS:
        raise ValueError(f"{cell} cannot be reached: {UNREACHABLE.get(cell, 'not a state of the table')}")
    return cell
