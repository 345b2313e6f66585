"""`headwater consume`: messages of a topic on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from api.connection import BrokerUnreachableError, client_properties, require_reachable
from api.topic_model import validate_topic_name
from headwater.cli.errors import EXIT_FAILED, CliError
from headwater.cli.message_format import DEFAULT_FORMAT, DIRECTIVES, Message, compile_format, format_json
from headwater.cli.options import client_options, client_security, servers, settings
from headwater.cli.output import note
from headwater.cli.start_offset import Start, StartKind, parse_start, resolve

BATCH_MESSAGES_MAX = 500
"""Messages taken from the client and printed before the output is flushed."""

POLL_S = 0.25
"""Longest time without looking for Ctrl-C."""

FORMAT_HELP = ", ".join(f"%{name} {meaning}" for name, (meaning, _) in DIRECTIVES.items())


@dataclass(frozen=True, slots=True)
class _Plan:
    topic: str
    start: Start
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
    help="start, end, an offset (47), messages before the end (-3), or a time (@1700000000000, @2026-11-21T08:00:00Z). "
    " [default: end, or start with --exit]",
)
@click.option("--from-beginning", is_flag=True, help="The same as -o start.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition.")
@click.option(
    "-f",
    "--format",
    "format_text",
    metavar="FORMAT",
    default=DEFAULT_FORMAT,
    show_default=True,
    help="How a message is printed; the directives are below.",
)
@click.option("-J", "--json", "as_json", is_flag=True, help="Print each message as one line of JSON.")
@click.option("-e", "--exit", "exit_at_end", is_flag=True, help="Stop at the end of the topic.")
@click.option("-g", "--group", metavar="GROUP", help="Consume as a member of a group and commit its offsets.")
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
    """Print the messages of TOPIC: by default those that arrive from now on, until Ctrl-C.

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

    try:
        require_reachable(brokers)
    except BrokerUnreachableError as error:
        raise CliError(
            "consume",
            f"no broker answers at {error}",
            "start one with `headwater up`, or name another with --bootstrap-servers",
            exit_code=EXIT_FAILED,
        ) from None
    consumer = Consumer(
        client_properties(brokers, settings().request_timeout_ms, client_security())
        | {
            # Without a group nothing is joined or committed; the client insists on a name.
            "group.id": plan.group if plan.group is not None else "headwater-consume",
            "enable.auto.commit": plan.group is not None,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "latest" if plan.start.kind is StartKind.END else "earliest",
            "enable.partition.eof": plan.exit_at_end,
            "error_cb": _Outages(),
        }
    )
    try:
        if plan.group is not None:
            _partitions(consumer, plan)
            consumer.subscribe([plan.topic])
        else:
            consumer.assign(_assignment(consumer, plan))
        _print_messages(consumer, plan, show)
    except KafkaException as error:
        raise _failure(error.args[0]) from None
    finally:
        consumer.close()


class _Outages:
    """Says once that no broker answers while the client keeps trying."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, error: Any) -> None:
        if error.name() == "_ALL_BROKERS_DOWN" and not self._said:
            self._said = True
            note("headwater: consume: no broker answers; trying again until one does (Ctrl-C stops)")


def _partitions(consumer: Any, plan: _Plan) -> list[int]:
    """Return the partitions to read, after checking that topic and partitions exist."""
    metadata = consumer.list_topics(plan.topic, timeout=settings().request_timeout_ms / 1000)
    topic = metadata.topics.get(plan.topic)
    if topic is None or (topic.error is not None and topic.error.name() == "UNKNOWN_TOPIC_OR_PART"):
        raise CliError("consume", f"there is no topic {plan.topic!r}", "`headwater topic list` shows those that exist")
    if topic.error is not None:
        raise _failure(topic.error)
    present = sorted(topic.partitions)
    for partition in plan.partitions:
        if partition not in present:
            raise CliError(
                "consume", f"topic {plan.topic!r} has no partition {partition}", f"it has 0 to {present[-1]}"
            )
    return list(plan.partitions) or present


def _assignment(consumer: Any, plan: _Plan) -> list[Any]:
    """Return every partition with the offset to start at."""
    from confluent_kafka import TopicPartition

    timeout_s = settings().request_timeout_ms / 1000
    partitions = _partitions(consumer, plan)
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


def _print_messages(consumer: Any, plan: _Plan, show: Callable[[Message], bytes]) -> None:
    output = sys.stdout.buffer
    printed = 0
    at_end: set[int] = set()
    while plan.count_max is None or printed < plan.count_max:
        first = consumer.poll(POLL_S)
        if first is None:
            continue
        wanted = BATCH_MESSAGES_MAX if plan.count_max is None else min(BATCH_MESSAGES_MAX, plan.count_max - printed)
        batch: Sequence[Any] = [first, *(consumer.consume(wanted - 1, timeout=0) if wanted > 1 else [])]
        for raw in batch:
            error = raw.error()
            if error is not None:
                if error.name() != "_PARTITION_EOF":
                    raise _failure(error)
                at_end.add(raw.partition())
                continue
            at_end.discard(raw.partition())
            output.write(show(_message(raw)))
            printed += 1
            if plan.group is not None:
                consumer.store_offsets(raw)
        output.flush()
        if plan.exit_at_end and at_end >= {part.partition for part in consumer.assignment()}:
            return


def _message(raw: Any) -> Message:
    kind, timestamp_ms = raw.timestamp()
    return Message(
        topic=raw.topic(),
        partition=raw.partition(),
        offset=raw.offset(),
        timestamp_ms=timestamp_ms if kind else -1,
        key=raw.key(),
        value=raw.value(),
        headers=raw.headers() or (),
    )


def _failure(error: Any) -> CliError:
    reason = " ".join(error.str().split()).removeprefix("Broker: ").removeprefix("Local: ")
    return CliError("consume", reason, "see the broker's log", exit_code=EXIT_FAILED)
