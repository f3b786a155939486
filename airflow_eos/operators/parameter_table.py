"""The rules for the parameters of operators, sensors, triggers and the decorator: one row each.

A new parameter of one of these classes needs a row; a test compares the table with their signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos import settings
from airflow_eos.compat.retry_policy import RetryPolicy
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model import relations
from airflow_eos.model.kinds import FLAG, NONE, TEXT, Kind, duration, instance_of, seconds, whole_number, word
from airflow_eos.model.names import checked_name, checked_prefix, checked_topic, checked_topics
from airflow_eos.model.ranges import Cursor, Explicit, Interval
from airflow_eos.model.spec import CHOICES, LedgerSettings
from airflow_eos.operators.partition_interval import check_partition_duration
from airflow_eos.operators.process_signature import check_call, folders_of, parts_of, signature_of
from airflow_eos.operators.rendered import parse_partition, parse_ranges, parse_topics
from airflow_eos.operators.schedules import check_schedule
from airflow_eos.operators.submitted_files import check_shippable
from airflow_eos.operators.task_identity import DATA_INTERVAL, accepting, accepts, as_range_mode

Check = Callable[..., object]
SUBMIT, REPLAY = "ReadProcessWriteSubmitOperator", "ReplayOffsetRangesOperator"
DECORATOR = "_KafkaEosDecoratedOperator"
LAG, DATA, COMMITTED = "KafkaLagSensor", "KafkaDataIntervalSensor", "RunCommittedSensor"
TRIGGER = "OffsetRangeTrigger"


@dataclass(frozen=True, slots=True)
class Row:
    """A rule.

    :param parameters: names; the rule applies to classes with the first one.
    :param check: takes their values, None for a missing one; raises if they break the rule.
    :param only: names of the classes it is for; empty for all.
    :param but: names of classes that it is not for.
    """

    parameters: tuple[str, ...]
    check: Check
    only: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    def concerns(self, cls: type) -> bool:
        """Return whether the rule is for a class or one of its bases."""
        names = {base.__name__ for base in cls.__mro__}
        return (not self.only or not names.isdisjoint(self.only)) and names.isdisjoint(self.but)


def _row(parameter: str, check: Kind | Callable[[str, Any], object], only: str = "", but: str = "") -> Row:
    """Return the rule of one parameter; its check also takes the parameter's name."""
    named = check.check if isinstance(check, Kind) else check
    return Row((parameter,), lambda value: named(parameter, value), tuple(only.split()), tuple(but.split()))


def _or_none(check: Callable[[str, Any], object], *, empty: bool = False) -> Callable[[str, Any], None]:
    """Return the check of an optional parameter; with ``empty``, an empty text counts as no value."""

    def checked(field: str, value: Any) -> None:
        if value is not None and not (empty and value == ""):
            check(field, value)

    return checked


def _if_any(check: Callable[[str, Any], object]) -> Callable[[str, Any], object]:
    """Return the check of a parameter that may be empty."""
    return lambda field, value: check(field, value) if value else None


def _mode(_: str, value: Any) -> None:
    if value is not None and value != DATA_INTERVAL:
        as_range_mode(value)


def _accepted_of(accept: Any, ranges: Any) -> None:
    if accepts(accept) and ranges != DATA_INTERVAL:
        accepting(Cursor() if ranges is None else as_range_mode(ranges))


def _accepted_of_given(accept: Any, offset_ranges: Any) -> None:
    if accepts(accept):
        accepting(replayed_ranges("offset_ranges", offset_ranges))


def _mapping(field: str, value: Any) -> None:
    """Check a mapping by its names only: its values may be secret."""
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ConfigurationError(
            f"{field} must be a mapping of names to values, got {type(value).__name__}; write "
            f'{field}={{"name": value}}'
        )


def _process(field: str, value: Any) -> None:
    if isinstance(value, str):
        parts_of(value)
    elif not callable(value):
        raise ConfigurationError(f"{field} must be a function or a string, got {type(value).__name__}")


def _submitted_process(field: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ConfigurationError(
            f"{field} must be the text 'path/to/file.py:function' or 'package.module:function', got "
            f"{type(value).__name__}: a function cannot be submitted"
        )
    check_shippable(value)


def _submitted(process: Any, application: Any) -> None:
    if bool(process) == bool(application):
        raise ConfigurationError("give either process or application")


def _process_in(process: Any, dag: Any, op_kwargs: Any) -> None:
    signature = None if process is None else signature_of(process, folders_of(dag.fileloc))
    if signature is not None and (op_kwargs is None or isinstance(op_kwargs, Mapping)):
        check_call(signature, op_kwargs or ())


def _timeouts(transaction: Any, delivery: Any) -> None:
    from airflow_eos.run.laws import timeouts_fit

    timeouts_fit(delivery, transaction, None)


def _names(topics: Any) -> tuple[str, ...]:
    return parse_topics("topics", topics)


def _ledger_topic(ledger: LedgerSettings | None) -> str:
    return ledger.topic if ledger else settings.default_ledger_topic()


def _sink(sink: Any, topics: Any, ledger: Any, allow_loop: Any) -> None:
    relations.check_sink(sink, _names(topics), _ledger_topic(ledger), allow_loop=bool(allow_loop))


def _table(_: str, sink: Any) -> None:
    relations.check_table(sink, {})
    if sink is not None and sink.properties is not None:
        raise ConfigurationError(
            f"sink={type(sink).__name__}(..., properties=...) is for programs without Airflow: a Dag names a "
            f"connection ({sink.connection_id!r}), which keeps its secrets"
        )


def _beside_table(name: str) -> Callable[[Any, Any], None]:
    # A parameter that is not given has a default that suits a table.
    return lambda sink, value: relations.check_table(sink, {} if value is None else {name: value})


def _dead_letters(topic: Any, topics: Any, ledger: Any) -> None:
    relations.check_dead_letter_topic(topic, _names(topics), _ledger_topic(ledger))


def _partition_of(partition: Any, topics: Any) -> None:
    if topics:
        relations.check_source_partition(parse_partition("source_partition", partition), _names(topics))


def _ranges_of(ranges: Any, topics: Any, partition: Any) -> None:
    if isinstance(ranges, Explicit):
        relations.check_explicit(ranges, _names(topics), parse_partition("source_partition", partition))


def _in_topics(name: str) -> Callable[[Any, Any], None]:
    return lambda ranges, topics: relations.check_topics_of(
        name, parse_ranges(name, ranges or ()), _names(topics)
    )


def confirmed(field: str, value: Any) -> bool:
    """Return a confirmation that a template may have rendered; raises ConfigurationError for other texts."""
    text = str(value).strip().lower() if isinstance(value, bool | str) else value
    word("true", "false", "yes", "no").check(field, text)
    return text in ("true", "yes")


def _reason(field: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"a replay needs a {field}, which is kept in the ledger, got {value!r}")


def _named_run(topics: Any, ranges: Any, partition: Any, run_key: Any) -> None:
    if not run_key and not topics:
        check_topics_needed(Cursor() if ranges is None else ranges, partition)


def _max_records(most: Any, least: Any) -> None:
    if most is not None and most < least:
        raise ConfigurationError(f"max_records must be at least min_records, got {most} and {least}")


def replayed_ranges(field: str, given: Any) -> Explicit:
    """Return ranges of a replay; raises ConfigurationError if unreadable, or two are of one partition."""
    ranges = parse_ranges(field, given)
    try:
        return Explicit(ranges)
    except ValueError as error:
        raise ConfigurationError(f"{field} {given!r}: {error}") from error


def check_topics_needed(ranges: Any, partition: Any) -> None:
    """Raise ConfigurationError for a run that is named without topics where they are part of its name."""
    if not isinstance(ranges, Cursor) or partition is not None:
        of = ranges if partition is None else f"source_partition={partition}"
        raise ConfigurationError(
            f"topics are part of the name of a run over {of}: give them as the operator has them"
        )


_POLICY = instance_of(RetryPolicy, "a RetryPolicy, for example TransactionRetryPolicy()") | NONE
_LEDGER = instance_of(LedgerSettings, "LedgerSettings(topic=...)") | NONE
_INTERVAL = instance_of(Interval, "Interval(start, end)") | NONE

TABLE: tuple[Row, ...] = (
    # input and output
    _row("topics", parse_topics, but=f"{COMMITTED} {TRIGGER}"),
    _row("topics", _if_any(parse_topics), only=COMMITTED),
    _row("topics", checked_topics, only=TRIGGER),
    _row("sink_topic", _or_none(checked_topic)),
    _row("sink", _table),
    _row("dead_letter_topic", _or_none(checked_topic)),
    _row("source_partition", parse_partition),
    _row("skip_offsets", _if_any(parse_ranges)),
    _row("ranges", _mode, but=DATA),
    _row("accept_deleted", lambda field, value: accepts(value, field)),
    _row("offset_ranges", replayed_ranges),
    _row("interval", _INTERVAL),
    # identity and ledger
    _row("group_id", checked_name),
    _row("pipeline", checked_name, only=COMMITTED),
    _row("pipeline", _or_none(checked_name, empty=True), but=COMMITTED),
    _row("prefix", _or_none(lambda _, value: checked_prefix(value), empty=True)),
    _row("kafka_config_id", TEXT),
    _row("ledger", _LEDGER),
    _row("ledger_topic", _or_none(checked_topic, empty=True)),
    _row("run_id", TEXT),
    _row("run_key", instance_of(str, "text") | NONE),
    # execution
    *(_row(name, kind) for name, kind in CHOICES.items()),
    _row("on_empty", word("succeed", "skip")),
    _row("max_active_tis_per_dag", whole_number(1) | NONE),
    _row("retry_policy", _POLICY),
    _row("confirm", confirmed),
    _row("reason", _reason),
    # process
    _row("process", _process, but=SUBMIT),
    _row("process", _or_none(_submitted_process, empty=True), only=SUBMIT),
    _row("application", instance_of(str, "text"), only=SUBMIT),
    _row("op_kwargs", _mapping),
    _row("conn_id", TEXT | NONE, but=SUBMIT),
    _row("config_kwargs", _mapping),
    _row("deferrable", FLAG, only=SUBMIT),
    _row("deferrable", FLAG | NONE, but=SUBMIT),
    # waiting
    _row("allowed_lateness", duration()),
    _row("partition_duration", lambda _, value: check_partition_duration(value)),
    _row("idle_partitions", word("allowed_lateness", "wait")),
    _row("min_records", whole_number(1)),
    _row("max_records", whole_number(1) | NONE),
    _row("max_delay", duration() | NONE, only=LAG),
    _row("max_delay", seconds() | NONE, only=TRIGGER),
    _row("start", word("earliest", "latest")),
    _row("poll_interval", seconds(above=True)),
    # relations
    Row(("sink_topic", "topics", "ledger", "allow_loop"), _sink),
    Row(("dead_letter_topic", "topics", "ledger"), _dead_letters),
    Row(("sink", "dead_letter_topic", "max_dead_letters"), relations.check_letters_beside_table),
    *(Row(("sink", name), _beside_table(name)) for name in relations.TABLE_REFUSES),
    Row(("source_partition", "topics"), _partition_of),
    Row(("ranges", "topics", "source_partition"), _ranges_of),
    Row(("skip_offsets", "topics"), _in_topics("skip_offsets")),
    Row(("offset_ranges", "topics"), _in_topics("offset_ranges")),
    Row(("accept_deleted", "ranges"), _accepted_of, but=(DATA, REPLAY)),
    Row(("accept_deleted", "offset_ranges"), _accepted_of_given, only=(REPLAY,)),
    Row(("transaction_timeout", "delivery_timeout"), _timeouts),
    Row(("process", "application"), _submitted, only=(SUBMIT,)),
    Row(("topics", "ranges", "source_partition", "run_key"), _named_run, only=(COMMITTED,)),
    Row(("max_records", "min_records"), _max_records),
    # the Dag
    Row(("process", "dag", "op_kwargs"), _process_in, but=(DECORATOR,)),
    Row(("ranges", "dag", "partition_duration", "task_id", "run_key"), check_schedule),
)
"""All rules, in the order in which they are applied: single parameters before relations."""
