"""OpenLineage facets of a run, where the OpenLineage provider is installed; nothing is imported before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.wire.client_config import ClientConfig


def run_lineage(
    kafka: Mapping[str, Any],
    sources: Sequence[str],
    sink: str | None,
    record: RunRecord | None,
    run_key: str | None = None,
    table: SinkTable | None = None,
) -> Any:
    """Return an ``OperatorLineage``: Kafka topics as datasets, offset ranges as a facet of the run.

    Datasets are named as the OpenLineage naming rules for Kafka say: namespace ``kafka://host:port`` of the
    first bootstrap server, name the topic.

    :param record: the committed run; None if the run starts, or failed.
    :param table: the sink, if it is a table: a dataset of its catalog's connection.
    """
    from airflow.providers.common.compat.openlineage.facet import (
        Dataset,
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage

    namespace = f"kafka://{ClientConfig.of(kafka).first_server}"
    inputs = [Dataset(namespace=namespace, name=topic) for topic in sources]
    if record is None:
        outputs = [Dataset(namespace=namespace, name=sink)] if sink else []
        if table is not None:
            outputs = [Dataset(namespace=table.dataset[0], name=table.dataset[1])]
        facets = {} if run_key is None else {"airflowEos": _facet(run_key=run_key)}
        return OperatorLineage(inputs=inputs, outputs=outputs, run_facets=facets)
    written: dict[tuple[str, str], tuple[int, int | None]] = {}
    for topic in sorted({receipt.topic for receipt in record.receipts}):
        receipts = [receipt for receipt in record.receipts if receipt.topic == topic]
        records, size = sum(it.records for it in receipts), sum(it.size for it in receipts)
        written[namespace, topic] = (records, size)
    if table is not None:
        written[table.dataset] = (record.records_written, None)
    return OperatorLineage(
        inputs=inputs,
        outputs=[
            OutputDataset(
                namespace=place,
                name=name,
                outputFacets={
                    "outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=records, size=size)
                },
            )
            for (place, name), (records, size) in written.items()
        ],
        run_facets={
            "airflowEos": _facet(
                run_key=record.run_key,
                mode=record.mode,
                found=record.found,
                group_id=record.group_id,
                records_read=record.records_read,
                records_written=record.records_written,
                offset_ranges=[
                    {"topic": r.topic, "partition": r.partition, "start": r.start, "end": r.end}
                    for r in record.ranges
                ],
            )
        },
    )


def _facet(**values: Any) -> Any:
    """Return a run facet with these values; the class is made here, since its base may be missing."""
    import attrs
    from airflow.providers.common.compat.openlineage.facet import RunFacet

    facet: Any = attrs.make_class(
        "ExactlyOnceRunFacet", {name: attrs.field() for name in values}, bases=(RunFacet,), kw_only=True
    )
    return facet(**values)
