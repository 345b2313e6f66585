"""`headwater consume`: prints the messages of a topic."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from headwater.api.connection import BrokerUnreachableError, client_properties, require_reachable
from headwater.api.topic_model import ErrorCode, TopicAdminError, TopicInfo, validate_topic_name
from headwater.cli.messages.message_format import DEFAULT_FORMAT, DIRECTIVES, Message, compile_format, format_json
from headwater.cli.messages.start_offset import StartKind, StartOffset, parse_start, resolve
from headwater.cli.messages.topic_watch import INTERVAL_S, TopicGoneError, TopicWatch
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import Bytes, client_options, client_security, servers, settings
from headwater.cli.shell.output import note
from headwater.cli.shell.termination import held_signals, raise_on_sigterm

if TYPE_CHECKING:
    from headwater.api.topic_admin import TopicAdmin

BATCH_MESSAGES_MAX = 500
"""Messages fetched from the client and printed before the output is flushed."""

POLL_S = 0.25
"""Longest time between checks for Ctrl-C."""

FORMAT_HELP = ", ".join(f"%{name} {meaning}" for name, (meaning, _) in DIRECTIVES.items())


@dataclass(frozen=True, slots=True)
class _Plan:
    topic: str
    start: StartOffset
    partitions: tuple[int, ...]
    group: str | None
    exit_at_end: bool
    count_max: int | None


@click.command(epilog=f"Directives of --format: {FORMAT_HELP}.")
@click.argument("topic")
@click.option(
    "-o",
    "--offset",
    "start",
    metavar="WHERE",
    help="Where to start: start, end, an offset (47), a number of messages before the end (-3), "
    "or a timestamp (@1700000000000, @2026-11-21T08:00:00Z).  [default: end; start with --exit]",
)
@click.option("--from-beginning", is_flag=True, help="The same as -o start.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Exit after this number of messages.")
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Read this partition only."
)
@click.option(
    "-f",
    "--format",
    "format_text",
    type=Bytes(),
    metavar="FORMAT",
    default=DEFAULT_FORMAT,
    show_default=True,
    help="Output format of a message; its directives are listed below.",
)
@click.option("-J", "--json", "as_json", is_flag=True, help="Print each message as one line of JSON.")
@click.option("-e", "--exit", "exit_at_end", is_flag=True, help="Exit at the end of the topic.")
@click.option("-g", "--group", metavar="GROUP", help="Consume as a member of this group, and commit offsets.")
@client_options
def consume(
    topic: str,
    start: str | None,
    from_beginning: bool,
    count: int | None,
    partitions: tuple[int, ...],
    format_text: str,
    as_json: bool,
    exit_at_end: bool,
    group: str | None,
    bootstrap_servers: str | None,
) -> None:
    """Print the messages of TOPIC, by default new ones only, until Ctrl-C.

    Partitions added later are read as well. The command ends if the topic is deleted. On SIGTERM the consumer leaves
    its group.

    \b
    Examples:
      headwater consume flights -o start -n 10 -f '%p %o %k %v\\n'
      headwater consume flights -o @2026-11-21T08:00:00Z --json
      headwater consume flights -e | wc -l
    """
    validate_topic_name(topic)
    try:
        show = format_json if as_json else compile_format(format_text)
        if start is None:
            start = "start" if from_beginning or exit_at_end else "end"
        chosen = parse_start(start)
    except ValueError as error:
        raise CliError("consume", str(error)) from None
    if group is not None and (partitions or chosen.kind not in {StartKind.START, StartKind.END}):
        raise CliError(
            "consume",
            "a group's partitions and offsets are the group's own",
            "with --group leave out -p, and use -o start or end",
        )
    plan = _Plan(topic, chosen, tuple(dict.fromkeys(partitions)), group, exit_at_end, count)
    _run(plan, show, servers(bootstrap_servers))


def _run(plan: _Plan, show: Callable[[Message], bytes], brokers: str) -> None:
    from confluent_kafka import Consumer, KafkaException

    from headwater.api.topic_admin import TopicAdmin

    try:
        require_reachable(brokers)
    except BrokerUnreachableError as error:
        raise CliError(
            "consume",
            f"no broker answers at {error}",
            "start one with `headwater up`, or name another with --bootstrap-servers",
            exit_code=EXIT_FAILED,
        ) from None
    admin = TopicAdmin(brokers, settings().request_timeout_ms, client_security())
    topic = _described(admin, plan)
    # A group is left when SIGTERM arrives: else its other members wait for the session to time out.
    raise_on_sigterm()
    consumer = Consumer(
        client_properties(brokers, settings().request_timeout_ms, client_security())
        | {
            # Without a group nothing is joined or committed; the client insists on a name.
            "group.id": plan.group if plan.group is not None else "headwater-consume",
            "enable.auto.commit": plan.group is not None,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "latest" if plan.start.kind is StartKind.END else "earliest",
            # The offset of an end lies behind markers and aborted records, which are no messages.
            "enable.partition.eof": plan.exit_at_end or plan.group is not None,
            # A group learns of added partitions from its members' metadata.
            "topic.metadata.refresh.interval.ms": int(INTERVAL_S * 1000),
            "error_cb": _Outages(),
        }
    )
    try:
        if plan.group is not None:
            consumer.subscribe([plan.topic])
        else:
            consumer.assign(_assignment(consumer, plan, topic))
        with TopicWatch(topic, admin.describe_topic) as watch:
            _print_messages(consumer, plan, show, watch)
    except TopicGoneError as error:
        raise CliError(
            "consume", str(error), "`headwater topic list` shows those that exist", exit_code=EXIT_FAILED
        ) from None
    except KafkaException as error:
        raise _failure(error.args[0]) from None
    finally:
        consumer.close()


class _Outages:
    """Reports once that no broker answers while the client retries."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, error: Any) -> None:
        if error.name() == "_ALL_BROKERS_DOWN" and not self._said:
            self._said = True
            note("headwater: consume: no broker answers; trying again until one does (Ctrl-C stops)")


def _described(admin: TopicAdmin, plan: _Plan) -> TopicInfo:
    """Return the topic, after checking that it has the requested partitions."""
    try:
        topic = admin.describe_topic(plan.topic)
    except TopicAdminError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC:
            raise
        raise CliError(
            "consume", f"there is no topic {plan.topic!r}", "`headwater topic list` shows those that exist"
        ) from None
    for partition in plan.partitions:
        if partition >= topic.partitions_count:
            raise CliError(
                "consume",
                f"topic {plan.topic!r} has no partition {partition}",
                f"it has 0 to {topic.partitions_count - 1}",
            )
    return topic


def _assignment(consumer: Any, plan: _Plan, topic: TopicInfo) -> list[Any]:
    """Return every partition with its start offset."""
    from confluent_kafka import TopicPartition

    timeout_s = settings().request_timeout_ms / 1000
    partitions = plan.partitions or [part.partition for part in topic.partitions]
    bounds: dict[int, tuple[int, int]] = {}
    for partition in partitions:
        watermarks = consumer.get_watermark_offsets(TopicPartition(plan.topic, partition), timeout=timeout_s)
        if watermarks is None:
            raise CliError("consume", "no answer from the broker in time", "see its log", exit_code=EXIT_FAILED)
        bounds[partition] = watermarks
    if plan.start.kind is not StartKind.TIMESTAMP:
        return [TopicPartition(plan.topic, p, resolve(plan.start, *bounds[p])) for p in partitions]
    asked = [TopicPartition(plan.topic, partition, plan.start.number) for partition in partitions]
    found = consumer.offsets_for_times(asked, timeout=timeout_s)
    for answer in found:
        if answer.error is not None:
            raise _failure(answer.error)
    # No message that late: the partition starts at its end.
    return [
        TopicPartition(plan.topic, a.partition, a.offset if a.offset >= 0 else bounds[a.partition][1]) for a in found
    ]


def _print_messages(consumer: Any, plan: _Plan, show: Callable[[Message], bytes], watch: TopicWatch) -> None:
    printed = 0
    at_end: set[int] = set()
    unreadable = _UnreadableHeaders()
    while plan.count_max is None or printed < plan.count_max:
        added = watch.added_partitions()
        if added:
            _read_too(consumer, plan, added)
        first = consumer.poll(POLL_S)
        if first is None:
            continue
        wanted = BATCH_MESSAGES_MAX if plan.count_max is None else min(BATCH_MESSAGES_MAX, plan.count_max - printed)
        batch: Sequence[Any] = [first, *(consumer.consume(wanted - 1, timeout=0) if wanted > 1 else [])]
        printed += _print_batch(consumer, plan, lambda raw: show(_message(raw, unreadable)), batch, at_end)
        if plan.exit_at_end and at_end >= {part.partition for part in consumer.assignment()}:
            return


def _print_batch(
    consumer: Any, plan: _Plan, show: Callable[[Any], bytes], batch: Sequence[Any], at_end: set[int]
) -> int:
    """Print a batch's messages, then store their offsets for commit; `at_end` collects partitions read to the end."""
    output = sys.stdout.buffer
    printed = 0
    next_offsets: dict[int, int] = {}
    try:
        for raw in batch:
            error = raw.error()
            if error is not None:
                if error.name() != "_PARTITION_EOF":
                    raise _failure(error)
                at_end.add(raw.partition())
                next_offsets[raw.partition()] = raw.offset()
                continue
            at_end.discard(raw.partition())
            output.write(show(raw))
            printed += 1
            next_offsets[raw.partition()] = raw.offset() + 1
    finally:
        # What was printed counts as read, and nothing else does, however the command ends.
        with held_signals():
            output.flush()
            if plan.group is not None:
                _store(consumer, plan.topic, next_offsets)
    return printed


def _store(consumer: Any, topic: str, next_offsets: Mapping[int, int]) -> None:
    from confluent_kafka import KafkaException, TopicPartition

    for partition, offset in next_offsets.items():
        try:
            consumer.store_offsets(offsets=[TopicPartition(topic, partition, offset)])
        except KafkaException as error:
            # _STATE: the partition was taken from this member meanwhile; its new owner reads these messages again.
            if error.args[0].name() != "_STATE":
                raise


def _read_too(consumer: Any, plan: _Plan, added: frozenset[int]) -> None:
    """Read added partitions from their beginning: every message in them arrived after the start."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    if plan.partitions:
        return
    names = ", ".join(str(partition) for partition in sorted(added))
    note(f"headwater: consume: topic {plan.topic!r} has new partitions, which are read as well: {names}")
    if plan.group is None:
        consumer.incremental_assign([TopicPartition(plan.topic, partition, OFFSET_BEGINNING) for partition in added])


class _UnreadableHeaders:
    """Reports once that headers are omitted: librdkafka decodes none if a header's name is not UTF-8."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, raw: Any) -> None:
        if not self._said:
            self._said = True
            note(
                "headwater: consume: headers of messages with a header name that is not UTF-8 are not shown; "
                f"the first is at offset {raw.offset()} of partition {raw.partition()}"
            )


def _message(raw: Any, unreadable: Callable[[Any], None]) -> Message:
    try:
        headers = raw.headers() or ()
    except (UnicodeDecodeError, SystemError):
        # The binding returns a value and an error at once, which Python calls a SystemError.
        unreadable(raw)
        headers = ()
    kind, timestamp_ms = raw.timestamp()
    return Message(
        topic=raw.topic(),
        partition=raw.partition(),
        offset=raw.offset(),
        timestamp_ms=timestamp_ms if kind else -1,
        key=raw.key(),
        value=raw.value(),
        headers=headers,
    )


def _failure(error: Any) -> CliError:
    if error.name() == "UNKNOWN_TOPIC_OR_PART":
        return CliError(
            "consume", "the topic was deleted", "`headwater topic list` shows those that exist", exit_code=EXIT_FAILED
        )
    reason = " ".join(error.str().split()).removeprefix("Broker: ").removeprefix("Local: ")
    return CliError("consume", reason, "see the broker's log", exit_code=EXIT_FAILED)
