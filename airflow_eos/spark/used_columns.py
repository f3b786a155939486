"""The columns of source records that a transform uses.

Spark copies each column that a read task yields into a row, whether the transform uses it or not. The
optimised plan shows which ones it uses. In the others the read tasks yield nulls, which cost next to nothing.

Only plans that show all reads of the source are analysed: a cached DataFrame, a checkpoint or an RDD may read
other columns in the same job. A Spark Connect client cannot see the plan.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_eos.spark.session import elements_of, is_connect, is_on, local_property
from airflow_eos.spark.source import READ_TASK_NAME, USED_COLUMNS, source_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

SWITCH = "spark.airflowEos.allColumns"
"""``true`` in Spark's configuration or the session's: read tasks fill all columns."""
_SOURCE = f"MapInArrow {READ_TASK_NAME}("  # beginning of a node's text
_MOST_NODES = 300  # of a plan, each with a few JVM calls
_LONGEST_PROJECT = 16_000  # characters of a Project: its literals are copied into each row
_MAKES_LARGE_VALUES = re.compile(
    r"\b(?:array_insert|array_repeat|format_string|lambdafunction|lpad|printf|randstr|repeat|rpad|sequence|space)\("
    r"|Unsafe(?:Array|Map)Data@"
)
"""Matches functions whose results may have any size, and literals whose size a Project's text hides."""
# Leaves that do not read the source of a run. The range below a read task is not visited.
_OTHER_LEAVES = {"LocalRelation", "OneRowRelation", "LogicalRelation", "DataSourceV2ScanRelation"}


@contextmanager
def only_used_columns(spark: SparkSession, frame: DataFrame) -> Iterator[None]:
    """Let the read tasks of this block's jobs fill only the columns that ``frame`` uses."""
    columns = _known_columns(spark, frame)
    if columns is None:
        yield
        return
    with local_property(spark, USED_COLUMNS, ",".join(sorted(columns))):
        yield


def _shows_plans(spark: SparkSession) -> bool:
    # Without a JVM thread per Python thread, a property could leak into the jobs of another thread.
    return not is_connect(spark) and os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"


def _known_columns(spark: SparkSession, frame: DataFrame) -> Collection[str] | None:
    if not _shows_plans(spark) or is_on(spark, SWITCH):
        return None
    try:
        return used_columns(frame)
    except Exception as error:  # noqa: BLE001 - of a platform that hides plans; a wrong plan fails its job
        log.debug("the columns that the transform uses are not known: %s", error)
        return None


def only_selects(spark: SparkSession, frame: DataFrame) -> bool:
    """Return whether the plan of sealed rows makes one row of each record of the source, without a UDF.

    Such a plan yields rows in the records' order, and none that is much larger than its record: functions
    that make large values of small ones, such as ``repeat``, are refused. After a filter the rows of one
    batch may be the largest of any number of records.
    """
    if not _shows_plans(spark):
        return False
    try:
        trees: Any = spark._jvm.org.apache.spark.sql.catalyst.trees  # noqa: SLF001
        plan: Any = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
        return not plan.containsPattern(trees.TreePattern.SCALA_UDF()) and _selects(plan)
    except Exception as error:  # noqa: BLE001 - of a platform that hides plans
        log.debug("whether the transform only selects is not known: %s", error)
        return False


def _selects(plan: Any) -> bool:
    if plan.subqueriesAll().size():
        return False
    node = plan
    for _ in ("routed to their owners", "sealed"):
        node = node.children().apply(0)
    while node.nodeName() == "Project":
        text = node.simpleString(_MOST_NODES)
        if len(text) > _LONGEST_PROJECT or _MAKES_LARGE_VALUES.search(text):
            return False
        node = node.children().apply(0)
    return bool(node.simpleString(_MOST_NODES).startswith(_SOURCE))


def used_columns(frame: DataFrame) -> frozenset[str] | None:
    """Return the columns of the source that the plan of a classic session's DataFrame uses.

    :return: None if they are unknown: a part of the plan is not visible, or uses whole rows.
    """
    plan: Any = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
    if plan.subqueriesAll().size():
        return None
    used: set[str] = set()
    # A node, and the columns to which nodes above it refer; None if these may use whole rows.
    nodes: list[tuple[Any, list[Any] | None]] = [(plan, None)]
    for _ in range(_MOST_NODES):
        if not nodes:
            return frozenset(used)
        node, references = nodes.pop()
        name = node.nodeName()
        if node.simpleString(_MOST_NODES).startswith(_SOURCE):
            output = elements_of(node.output())
            if references is None or [column.name() for column in output] != source_schema().names:
                return None
            used.update(column.name() for column in output if any(r.contains(column) for r in references))
            continue
        children = elements_of(node.children())
        if not children and name not in _OTHER_LEAVES:
            return None
        if name == "Project":
            references = [node.references()]
        elif name == "Filter" and references is not None:
            references = [*references, node.references()]
        else:
            references = None
        nodes += [(child, references) for child in children]
    return None
