"""`headwater produce`: lines of input become messages."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from api.connection import BrokerUnreachableError, client_properties, require_reachable
from api.topic_model import validate_topic_name
from headwater.cli.errors import EXIT_FAILED, CliError
from headwater.cli.message_input import LineTooLongError, read_lines, split_key, unescape
from headwater.cli.options import client_options, client_security, compression_option, key_value, servers, settings
from headwater.cli.output import note

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

LINGER_MS = 5
"""Long enough to batch a file that is read at once, too short to notice at a keyboard."""

DELIVERY_TIMEOUT_FACTOR = 3
"""A message may take so many request timeouts, its retries included, before it counts as not delivered."""


class _Deliveries:
    """Counts what the brokers acknowledged and keeps the first failure."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0
        self.first_failure: str | None = None

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.delivered += 1
            return
        self.failed += 1
        if self.first_failure is None:
            self.first_failure = " ".join(error.str().split()).removeprefix("Broker: ").removeprefix("Local: ")


@click.command()
@click.argument("topic")
@click.argument("file", required=False, type=click.Path(), metavar="[FILE]")
@click.option("-k", "--key-separator", metavar="TEXT", help=r"What stands between key and value, such as : or \t.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Partition to write to.  [default: by key]")
@compression_option
@click.option(
    "--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True, help="Whom to wait for."
)
@client_options
def produce(
    topic: str,
    file: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    acks: str,
    bootstrap_servers: str | None,
) -> None:
    """Write each line of FILE (or of standard input) to TOPIC as one message.

    A line without the key separator is a message without a key. Keys land where the Java client puts them (murmur2).
    The exit code is 1 when a message was not delivered.

    \b
    Examples:
      echo '{"id": 1}' | headwater produce events
      headwater produce flights flights.jsonl -k '\\t' -H source=file
    """
    from confluent_kafka import Producer

    validate_topic_name(topic)
    separator = _separator(key_separator)
    header_list = [(name, value.encode()) for name, value in (key_value(text, "--header") for text in headers)]
    brokers = servers(bootstrap_servers)
    _require_reachable(brokers)
    timeout_ms = settings().request_timeout_ms
    deliveries = _Deliveries()
    producer = Producer(
        client_properties(brokers, timeout_ms, client_security())
        | {
            "acks": acks,
            "enable.idempotence": acks == "all",
            "compression.type": compression,
            "linger.ms": LINGER_MS,
            "message.timeout.ms": DELIVERY_TIMEOUT_FACTOR * timeout_ms,
            "topic.metadata.propagation.max.ms": timeout_ms,
            "partitioner": "murmur2_random",
        }
    )
    interrupted = False
    with _open(file) as stream:
        try:
            for line in read_lines(stream):
                key, value = split_key(line, separator)
                _send(producer, topic, partition, key, value, header_list, deliveries)
                if deliveries.failed:
                    break
        except KeyboardInterrupt:
            interrupted = True
        except LineTooLongError as error:
            producer.flush(DELIVERY_TIMEOUT_FACTOR * timeout_ms / 1000)
            raise CliError("produce", str(error), "split the input into lines") from None
    left = producer.flush(DELIVERY_TIMEOUT_FACTOR * timeout_ms / 1000 + 1)
    if deliveries.failed or left:
        why = deliveries.first_failure or "no answer from the broker in time"
        raise CliError(
            "produce",
            f"{deliveries.failed + left} messages to {topic!r} were not delivered, {deliveries.delivered} were: {why}",
            f"check the topic with `headwater topic describe {topic}`",
            exit_code=EXIT_FAILED,
        )
    note(f"Produced {deliveries.delivered} messages to {topic}.")
    if interrupted:
        raise KeyboardInterrupt


def _separator(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        separator = unescape(text).encode()
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--key-separator") from None
    if not separator:
        raise click.BadParameter("the separator is empty", param_hint="--key-separator")
    return separator


def _require_reachable(brokers: str) -> None:
    try:
        require_reachable(brokers)
    except BrokerUnreachableError as error:
        raise CliError(
            "produce",
            f"no broker answers at {error}",
            "start one with `headwater up`, or name another with --bootstrap-servers",
            exit_code=EXIT_FAILED,
        ) from None


def _open(file: str | None) -> contextlib.AbstractContextManager[BinaryIO]:
    if file is None or file == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return open(file, "rb")
    except OSError as error:
        raise CliError("produce", f"{file} cannot be read: {error.strerror}", "check the file's name") from None


def _send(
    producer: object,
    topic: str,
    partition: int | None,
    key: bytes | None,
    value: bytes,
    headers: list[tuple[str, bytes]],
    deliveries: _Deliveries,
) -> None:
    """Queue one message; when the client's queue is full, wait for deliveries first."""
    from confluent_kafka import KafkaException, Producer

    assert isinstance(producer, Producer)
    arguments: dict[str, Any] = {"key": key, "headers": headers or None, "on_delivery": deliveries}
    if partition is not None:
        arguments["partition"] = partition
    while True:
        try:
            producer.produce(topic, value, **arguments)
        except BufferError:
            producer.poll(0.5)
            if deliveries.failed:
                return
        except KafkaException as error:
            reason = error.args[0].str().removeprefix("Broker: ").removeprefix("Local: ")
            raise CliError("produce", f"a message to {topic!r} was refused: {reason}", exit_code=EXIT_FAILED) from None
        else:
            producer.poll(0)
            return
