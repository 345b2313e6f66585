"""`headwater produce`: writes lines of input as messages."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from headwater.api.connection import BrokerUnreachableError, client_properties, require_reachable
from headwater.api.topic_model import validate_topic_name
from headwater.cli.messages.message_input import LineTooLongError, read_lines, split_key, unescape
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import (
    Bytes,
    client_options,
    client_security,
    compression_option,
    key_value,
    servers,
    settings,
)
from headwater.cli.shell.output import note
from headwater.cli.shell.streams import STANDARD_INPUT
from headwater.cli.shell.termination import raise_on_sigterm
from headwater.shipping.topic_limits import read_topic_limits

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

LINGER_MS = 5
"""Long enough to batch a file that is read at once, too short to notice at a keyboard."""

DELIVERY_TIMEOUT_FACTOR = 3
"""Request timeouts, retries included, until a message counts as not delivered."""


class _Deliveries:
    """Counts acknowledged messages; keeps the first failure with its line."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0
        self.first_failure: str | None = None

    def of_line(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        """Return the delivery callback of a line's message."""

        def report(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self.delivered += 1
                return
            self.failed += 1
            if self.first_failure is None:
                self.first_failure = f"line {number}: {_reason(error)}"

        return report


def _reason(error: KafkaError) -> str:
    text = " ".join(error.str().split()).removeprefix("Unable to produce message: ")
    return text.removeprefix("Broker: ").removeprefix("Local: ")


class _LineRefusedError(Exception):
    """The client refused a line's message; the error reports line and reason."""


@click.command()
@click.argument("topic")
@click.argument("file", required=False, type=click.Path(), metavar="[FILE]")
@click.option(
    "-k", "--key-separator", type=Bytes(), metavar="TEXT", help=r"Separator between key and value, such as : or \t."
)
@click.option(
    "-H",
    "--header",
    "headers",
    type=Bytes(),
    multiple=True,
    metavar="NAME=VALUE",
    help="Message header; may be repeated.",
)
@click.option(
    "-p", "--partition", type=click.IntRange(min=0), help="Partition to write to.  [default: chosen by the key]"
)
@compression_option
@click.option(
    "-Z",
    "--tombstone",
    "has_tombstones",
    is_flag=True,
    help="Write an empty value as null, which deletes its key from a compacted topic.",
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="Acknowledgements to wait for: none, the leader's, or those of all in-sync replicas.",
)
@client_options
def produce(
    topic: str,
    file: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    has_tombstones: bool,
    acks: str,
    bootstrap_servers: str | None,
) -> None:
    """Write each line of FILE, or of standard input, to TOPIC as a message.

    A line without the key separator becomes a message without a key. Keys are partitioned as by the Java client
    (murmur2). The exit code is 1 if a message was not delivered; lines before it are delivered. SIGTERM and Ctrl-C end
    the input; lines already read are still sent.

    \b
    Examples:
      echo '{"id": 1}' | headwater produce events
      headwater produce flights flights.jsonl -k '\\t' -H source=file
      echo 'N14228:' | headwater produce planes -k : --tombstone
    """
    from confluent_kafka import Producer

    validate_topic_name(topic)
    separator = _separator(key_separator)
    header_list = [_header(text) for text in headers]
    brokers = servers(bootstrap_servers)
    _require_reachable(brokers)
    timeout_ms = settings().request_timeout_ms
    deliveries = _Deliveries()
    connection = client_properties(brokers, timeout_ms, client_security())
    producer = Producer(
        connection
        | read_topic_limits(connection, topic, timeout_ms / 1000).properties()
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
    fixed: dict[str, Any] = {"headers": header_list or None}
    if partition is not None:
        fixed["partition"] = partition
    interrupted: KeyboardInterrupt | None = None
    stopped: str | None = None
    refused = 0
    raise_on_sigterm()
    with _open(file) as stream:
        try:
            for number, line in enumerate(read_lines(stream), start=1):
                key, value = split_key(line, separator)
                message: dict[str, Any] = {"key": key, "value": None if has_tombstones and not value else value}
                _send(producer, topic, message | fixed, deliveries, number)
                if deliveries.failed:
                    break
        except KeyboardInterrupt as error:
            interrupted = error
        except (LineTooLongError, _LineRefusedError) as error:
            stopped, refused = str(error), 1
        except OSError as error:
            stopped = f"{_name(file)} cannot be read: {error.strerror}"
    # Lines before the failed one were read and taken: they are delivered, and counted, first.
    left = producer.flush(DELIVERY_TIMEOUT_FACTOR * timeout_ms / 1000 + 1)
    if stopped is not None or deliveries.failed or left:
        why = stopped or deliveries.first_failure or "no answer from the broker in time"
        raise CliError(
            "produce",
            f"{deliveries.failed + left + refused} messages to {topic!r} were not delivered, "
            f"{deliveries.delivered} were: {why}",
            f"check the topic with `headwater topic describe {topic}`",
            exit_code=EXIT_FAILED,
        )
    note(f"Produced {deliveries.delivered} messages to {topic}.")
    if interrupted is not None:
        raise interrupted


def _header(text: str) -> tuple[str, bytes]:
    name, value = key_value(text, "--header")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("the name of a header is UTF-8", param_hint="--header") from None
    # A value is bytes: those of the command line that are not UTF-8 go as they came.
    return name, value.encode("utf-8", "surrogateescape")


def _separator(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        separator = unescape(text).encode("utf-8", "surrogateescape")
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


def _name(file: str | None) -> str:
    return STANDARD_INPUT if file is None or file == "-" else file


def _open(file: str | None) -> contextlib.AbstractContextManager[BinaryIO]:
    if file is None or file == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return open(file, "rb")
    except OSError as error:
        raise CliError("produce", f"{file} cannot be read: {error.strerror}", "check the file's name") from None


def _send(producer: Producer, topic: str, message: dict[str, Any], deliveries: _Deliveries, number: int) -> None:
    """Queue the message of a line; if the client's queue is full, wait for deliveries first.

    Raises:
        _LineRefusedError: the client refused the message: it is too large, or the topic is not usable.
    """
    from confluent_kafka import KafkaException

    while True:
        try:
            producer.produce(topic, **message, on_delivery=deliveries.of_line(number))
        except BufferError:
            producer.poll(0.5)
            if deliveries.failed:
                return
        except KafkaException as error:
            raise _LineRefusedError(f"line {number}: {_reason(error.args[0])}") from None
        else:
            producer.poll(0)
            return
