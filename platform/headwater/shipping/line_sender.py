"""Sends lines to one topic, within its limits and bounded memory, and reports the result of each line.

No method waits for capacity: a line that cannot be sent now is refused to the caller, whose files are the buffer.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from confluent_kafka import KafkaException

from headwater.shipping.growing_pause import GrowingPause
from headwater.shipping.topic_limits import LimitsRequest, NoBrokerError, TopicLimits

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

QUEUE_LINES_MAX: Final = 50_000
QUEUE_BYTES_MAX: Final = 32 << 20
"""Bytes in flight: a larger limit is not faster, and a stalled broker leaves all of them in memory."""
LIMIT_BYTES_MIN: Final = 1_024
"""A topic that refuses batches of this size refuses the lines themselves."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
ASK_FIRST_S: Final = 0.5
ASK_MAX_S: Final = 5.0
"""Longest pause between queries for the topic's limits; a query itself waits for unreachable brokers."""


class LineVerdict(enum.Enum):
    """Result of a line that was not acknowledged."""

    AGAIN = "not taken, for a transient reason: it has to be sent again"
    REFUSED = "refused for what it is: sending it again is of no use"


class Failure(enum.Enum):
    """Reason why a line was not accepted."""

    TOO_LARGE = "the batch that it was in exceeds what the topic allows"
    BAD = "the record itself is refused"
    OURS = "its client was ended"
    PASSING = "anything else: brokers, topic and access may all come back"


_AWAY: Final = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"}
"""Connection errors of an unreachable broker; all other errors come from a broker that answers."""
_FAILURES: Final[Mapping[str, Failure]] = {
    "MSG_SIZE_TOO_LARGE": Failure.TOO_LARGE,
    "RECORD_LIST_TOO_LARGE": Failure.TOO_LARGE,
    "INVALID_RECORD": Failure.BAD,
    "INVALID_TIMESTAMP": Failure.BAD,
    "_PURGE_QUEUE": Failure.OURS,
    "_PURGE_INFLIGHT": Failure.OURS,
}


def failure_of(code: str) -> Failure:
    """Classify an error by librdkafka's name.

    >>> failure_of("MSG_SIZE_TOO_LARGE").name, failure_of("TOPIC_AUTHORIZATION_FAILED").name
    ('TOO_LARGE', 'PASSING')
    """
    return _FAILURES.get(code, Failure.PASSING)


def plain(text: str) -> str:
    """Return librdkafka's message as part of a sentence.

    >>> plain("sasl_plaintext://h:1/bootstrap: SASL authentication error: wrong (after 3ms in state AUTH_REQ)")
    'h:1: SASL authentication error: wrong'
    >>> plain("Broker: Topic authorization failed")
    'Topic authorization failed'
    """
    text = " ".join(text.split()).removeprefix("Broker: ").removeprefix("Local: ").partition(" (after ")[0]
    scheme, separator, rest = text.partition("://")
    return rest.replace("/bootstrap: ", ": ", 1) if separator and " " not in scheme else text


class Limits(Protocol):
    """A `LimitsRequest`."""

    def poll(self) -> None:
        """Let librdkafka call back with connection errors."""

    def is_done(self) -> bool:
        """Whether the answer is available."""

    def answer(self) -> TopicLimits | None:
        """Return the answer."""


class LineUnderWay(Protocol):
    """The caller's object for a line in flight."""

    size: int
    """Size in bytes."""
    has_arrived: bool
    """Set when the brokers have acknowledged the line."""


SentT = TypeVar("SentT", bound=LineUnderWay)


class LineSender:
    """The producer of one topic.

    Invariants: at most `QUEUE_LINES_MAX` lines and `QUEUE_BYTES_MAX` bytes (plus one line) are in flight; each line
    accepted by `send` is marked as arrived or gets one verdict, from within `poll` or `flush`. The topic's limits are
    queried before the first line; if no broker reports them, the batch size is halved until the broker accepts it.

    Nearly all lines arrive; an acknowledged line causes no call of the caller's function.

    Args:
        properties: librdkafka properties; the batch size is added.
    """

    def __init__(
        self,
        topic: str,
        properties: Mapping[str, Any],
        *,
        make_producer: Callable[[dict[str, Any]], Producer] | None = None,
        ask_limits: Callable[[Mapping[str, Any]], Limits] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        #: What the brokers, or the attempts to reach them, said last; empty since a line has arrived.
        self.trouble = ""
        #: Whether that is an answer: somebody is there, and refuses.
        self.is_refused = False
        self.arrived = 0
        self.limits = TopicLimits()
        self._properties = dict(properties) | {"error_cb": self._outage}
        self._make_producer = make_producer or _librdkafka
        self._ask_limits = ask_limits or (lambda asked: LimitsRequest(_administration(asked), topic, _timeout_s(asked)))
        self._monotonic_s = monotonic_s
        self._producer: Producer | None = None
        self._request: Limits | None = self._ask_limits(self._properties)
        self._pause = GrowingPause(RETRY_FIRST_S, RETRY_MAX_S)
        self._ask_pause = GrowingPause(ASK_FIRST_S, ASK_MAX_S)
        self._lines = self._bytes = 0
        self._is_too_large = False
        self._is_spoilt = False
        #: Bound once, not for each line.
        self._on_delivery: Callable[..., None] = self._delivered

    @property
    def has_room(self) -> bool:
        """Whether reading lines is worthwhile now."""
        return (
            self._producer is not None
            and self._request is None
            and not (self._is_too_large or self._is_spoilt)
            # Half of it: a file is not opened up for each line that was acknowledged.
            and self._lines <= QUEUE_LINES_MAX // 2
            and self._bytes <= QUEUE_BYTES_MAX // 2
            and self._pause.is_over(self._monotonic_s())
        )

    def send(
        self,
        text: bytes,
        key: bytes,
        headers: list[tuple[str, str | bytes | None]],
        sent: SentT,
        tell: Callable[[SentT, LineVerdict], None],
    ) -> bool:
        """Accept a line, which later arrives or gets a verdict through `tell`; False if there is no room."""
        # The rest of `has_room` changes while verdicts are told; whoever calls has asked since then.
        if self._producer is None or self._lines >= QUEUE_LINES_MAX or self._bytes >= QUEUE_BYTES_MAX:
            return False
        size = len(text) + len(key)
        try:
            self._producer.produce(
                self.topic, text, key, headers=headers, on_delivery=partial(self._on_delivery, size, sent, tell)
            )
        except BufferError:
            return False
        except KafkaException as error:
            # Known at once what a delivery would tell: it is told by a later try.
            if self._verdict(error.args[0], len(text)) is LineVerdict.REFUSED:
                tell(sent, LineVerdict.REFUSED)
                return True
            return False
        self._lines += 1
        self._bytes += size
        return True

    def poll(self, timeout_s: float) -> None:
        """Report verdicts; waits up to `timeout_s` for events."""
        if self._request is None and self._producer is None and self._ask_pause.is_over(self._monotonic_s()):
            self._request = self._ask_limits(self._properties)
        if self._request is not None:
            self._request.poll()
            if self._request.is_done():
                self._learn(self._request)
        if self._producer is None:
            time.sleep(timeout_s)
        else:
            self._producer.poll(timeout_s)
            if self._is_too_large or self._is_spoilt:
                self._end_producer()
                self._request = self._ask_limits(self._properties)

    def flush(self, timeout_s: float) -> None:
        """Wait until no line is in flight, for at most `timeout_s`."""
        if self._producer is not None:
            self._producer.flush(timeout_s)

    def _learn(self, request: Limits) -> None:
        """Process the answer to the query for the topic's limits, or its failure."""
        try:
            limits = request.answer()
        except NoBrokerError as error:
            # They are away: they are asked again until they come. An outage has said why.
            self.trouble = self.trouble or str(error)
            self._request = None
            self._ask_pause.begin(self._monotonic_s())
            return
        self._ask_pause.end()
        if self._is_too_large:
            # Not what the topic's config says, but the brokers do not take more.
            smaller = TopicLimits(max(LIMIT_BYTES_MIN, self.limits.batch_bytes_max // 2))
            is_known = limits is not None and limits.batch_bytes_max < self.limits.batch_bytes_max
            self.limits = limits if limits is not None and is_known else smaller
        elif limits is not None:
            self.limits = limits
        self._request, self._is_too_large, self._is_spoilt = None, False, False
        self._producer = self._make_producer(self._properties | self.limits.properties())

    def _end_producer(self) -> None:
        """End the producer: lines in flight come back through their callbacks, to be sent again."""
        producer, self._producer = self._producer, None
        assert producer is not None
        producer.purge()
        producer.flush(0)
        while self._lines:
            producer.poll(0.01)

    def _delivered(
        self, size: int, sent: SentT, tell: Callable[[SentT, LineVerdict], None], error: KafkaError | None, _: Message
    ) -> None:
        self._lines -= 1
        self._bytes -= size
        if error is not None:
            tell(sent, self._verdict(error, sent.size))
            return
        sent.has_arrived = True
        self.arrived += 1
        if self.trouble:
            self.trouble, self.is_refused = "", False
            self._pause.end()

    def _verdict(self, error: KafkaError, size: int) -> LineVerdict:
        failure = failure_of(error.name())
        if failure is Failure.OURS:
            return LineVerdict.AGAIN
        if failure is Failure.BAD:
            return LineVerdict.REFUSED
        if failure is Failure.TOO_LARGE:
            if self.limits.batch_bytes_max <= LIMIT_BYTES_MIN and size <= LIMIT_BYTES_MIN:
                return LineVerdict.REFUSED
            self._is_too_large = True
            return LineVerdict.AGAIN
        self.trouble, self.is_refused = plain(error.str()), True
        # One failure may be told for a thousand lines: the pause grows once.
        if self._pause.is_over(self._monotonic_s()):
            self._pause.begin(self._monotonic_s())
        # Such a producer takes nothing any more.
        self._is_spoilt = self._is_spoilt or error.fatal() or error.name() == "_FATAL"
        return LineVerdict.AGAIN

    def _outage(self, error: KafkaError) -> None:
        """Record a librdkafka error that does not belong to a line."""
        if error.name() == "_ALL_BROKERS_DOWN" and self.trouble:
            return  # the one before said why
        self.trouble = plain(error.str())
        self.is_refused = error.name() not in _AWAY
        self._is_spoilt = self._is_spoilt or (error.name() == "_FATAL" and self._producer is not None)


def _librdkafka(properties: dict[str, Any]) -> Producer:
    from confluent_kafka import Producer

    return Producer(
        properties
        # Twice what `has_room` allows: it is never this queue that is full.
        | {"queue.buffering.max.messages": 2 * QUEUE_LINES_MAX, "queue.buffering.max.kbytes": QUEUE_BYTES_MAX // 512}
    )


def _administration(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties without those of producers only."""
    producers = {"acks", "enable.idempotence", "compression.type", "linger.ms", "message.timeout.ms", "partitioner"}
    return {name: value for name, value in properties.items() if name not in producers}


def _timeout_s(properties: Mapping[str, Any]) -> float:
    return float(properties["socket.timeout.ms"]) / 1000
