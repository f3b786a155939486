"""Large orders, Avro in and Avro out, in the wire format of Confluent's serializers: docs/schemas.md.

Input: orders with item and price, each in its producer's version of the schema. Output: those of
``threshold`` and more, as :data:`LARGE_ORDER`, under the same key and event time.

Executors query the registry, once per schema and Spark task. Its credentials, if it needs any, are in their
environment variable ``SCHEMA_REGISTRY_USER_INFO`` (``user:password``): in no parameter, so in no plan or log.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from typing import Any, cast

import fastavro
import pyarrow as pa

from airflow_eos import arrow_process
from airflow_eos.exceptions import ProcessFailed

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "item", "type": "string"}, {"name": "price", "type": "double"}],
}
"""The reader's schema: other fields of a writer's schema are skipped."""
LARGE_ORDER = {
    "type": "record",
    "name": "LargeOrder",
    "fields": [*ORDER["fields"], {"name": "above", "type": "double"}],
}
LARGE_ORDER_SUBJECT = "orders-large-value"

_NO_SUCH_SCHEMA = 40403

_MAGIC, _HEAD = b"\x00", 5
"""Magic byte, and length of the header before the datum: magic byte, then schema id, big-endian."""


@arrow_process
def process(batch: pa.RecordBatch, registry: str, threshold: float = 100.0) -> pa.RecordBatch:
    """Return the large orders of a batch; tombstones are passed on.

    :param registry: address of the schema registry.
    """
    return large_orders(batch, lambda number: _writer(registry, number), _large_order(registry), threshold)


def large_orders(
    batch: pa.RecordBatch, writer_of: Callable[[int], Any], schema_id: int, threshold: float
) -> pa.RecordBatch:
    """Return the large orders of a batch, decoded, selected and encoded.

    :param writer_of: returns the parsed schema for an id.
    :param schema_id: the id of :data:`LARGE_ORDER`.
    :raises ValueError: a record is not in the wire format.
    """
    head, large = _MAGIC + schema_id.to_bytes(4, "big"), fastavro.parse_schema(LARGE_ORDER)
    kept: list[int] = []
    values: list[bytes | None] = []
    for row, value in enumerate(batch["value"].to_pylist()):
        order = None if value is None else _decoded(value, writer_of)
        if order is None or order["price"] >= threshold:
            kept.append(row)
            values.append(None if order is None else _encoded(order, threshold, head, large))
    rows = batch.take(pa.array(kept, pa.int64()))
    return pa.record_batch(
        {"key": rows["key"], "timestamp": rows["timestamp"], "value": pa.array(values, pa.binary())}
    )


def _decoded(value: bytes, writer_of: Callable[[int], Any]) -> dict[str, Any]:
    if len(value) < _HEAD or value[:1] != _MAGIC:
        raise ValueError("not in the registry's wire format: no magic byte 0 and schema id before the data")
    writer = writer_of(int.from_bytes(value[1:_HEAD], "big"))
    # ORDER is a record, which fastavro reads as a dictionary; its annotation covers every Avro type.
    return cast("dict[str, Any]", fastavro.schemaless_reader(io.BytesIO(value[_HEAD:]), writer, ORDER))


def _encoded(order: dict[str, Any], threshold: float, head: bytes, large: Any) -> bytes:
    written = io.BytesIO()
    written.write(head)
    fastavro.schemaless_writer(written, large, {**order, "above": order["price"] - threshold})
    return written.getvalue()


# -- the registry, on the executor ---------------------------------------------------------------------------


# A plain dictionary: the module is shipped to the executors by value, so everything must be picklable.
_KNOWN: dict[tuple[str, int | str], Any] = {}


def _writer(registry: str, number: int) -> Any:
    """Return the parsed schema of an id, which never changes."""
    parsed = _KNOWN.get((registry, number))
    if parsed is None:
        text = _query(registry, lambda client: client.get_schema(number)).schema_str
        parsed = _KNOWN[registry, number] = fastavro.parse_schema(json.loads(text))
    return parsed


def _large_order(registry: str) -> int:
    """Return the id of the output schema; registers it if necessary."""
    number = _KNOWN.get((registry, LARGE_ORDER_SUBJECT))
    if number is None:
        from confluent_kafka.schema_registry import Schema

        schema = Schema(json.dumps(LARGE_ORDER), "AVRO")
        number = _query(registry, lambda client: client.register_schema(LARGE_ORDER_SUBJECT, schema))
        _KNOWN[registry, LARGE_ORDER_SUBJECT] = number
    return int(number)


def _query(registry: str, ask: Callable[[Any], Any]) -> Any:
    """Query the registry.

    :raises ProcessFailed: it does not answer, or refuses: not a record's fault, so no dead letter.
    :raises SchemaRegistryError: the schema does not exist: the record that names it is wrong.
    """
    from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

    access = os.environ.get("SCHEMA_REGISTRY_USER_INFO")
    settings = {"url": registry, **({"basic.auth.user.info": access} if access else {})}
    try:
        with SchemaRegistryClient(settings) as client:
            return ask(client)
    except SchemaRegistryError as error:
        if error.error_code == _NO_SUCH_SCHEMA:
            raise
        raise ProcessFailed(f"the schema registry {registry} refuses: {error.error_message}") from error
    except Exception as error:  # from whichever HTTP library the client uses
        raise ProcessFailed(f"the schema registry {registry} does not answer: {error}") from error
