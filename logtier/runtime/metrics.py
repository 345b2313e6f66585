"""Counters of a broker, as plain numbers of negligible cost; `headwater.logtier.metrics` exports them.

Only the thread of the event loop writes and reads the counters.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Upper bounds of the buckets of request times, in seconds; the last bucket holds larger values.
SECONDS_BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class Histogram:
    """Histogram: number of values per bucket, and their sum.

    >>> histogram = Histogram((1.0, 2.0))
    >>> for value in (0.5, 1.0, 7.0):
    ...     histogram.observe(value)
    >>> histogram.counts, histogram.sum
    ([2, 0, 1], 8.5)
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class ApiMetrics:
    """Request metrics of one API: time from the last byte of a request to its response, size and errors.

    Attributes:
        errors: Number of errors by code; a request with ten partitions can add ten.
    """

    __slots__ = ("errors", "request_bytes", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram()
        self.errors: dict[int, int] = defaultdict(int)
        self.request_bytes = 0


class TopicTraffic:
    """Traffic of the partitions of one topic on this broker."""

    __slots__ = ("bytes_in", "bytes_out", "failed_fetches", "failed_produces", "messages_in")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_in = 0
        self.failed_produces = 0
        self.failed_fetches = 0


class BrokerMetrics:
    """All counters of one broker."""

    __slots__ = ("apis", "loop_lag", "topics")

    def __init__(self) -> None:
        self.apis: dict[int, ApiMetrics] = {}
        self.topics: dict[str, TopicTraffic] = {}
        #: Delay of the event loop's periodic timer, in seconds.
        self.loop_lag = Histogram()

    def api(self, api_key: int) -> ApiMetrics:
        """Return the counters of an API."""
        metrics = self.apis.get(api_key)
        if metrics is None:
            metrics = self.apis[api_key] = ApiMetrics()
        return metrics

    def traffic(self, topic: str) -> TopicTraffic:
        """Return the counters of an existing topic; unknown names would let clients fill the memory."""
        traffic = self.topics.get(topic)
        if traffic is None:
            traffic = self.topics[topic] = TopicTraffic()
        return traffic


#: Names of error code fields; the second one is AddPartitionsToTxn's.
_ERROR_CODES: Final = ("error_code", "partition_error_code")


def error_codes(answer: Mapping[str, Any]) -> list[int]:
    """Return all error codes of a response tree, except 0.

    >>> error_codes({"error_code": 0, "topics": [{"error_code": 3}, {"error_code": 3}]})
    [3, 3]
    >>> error_codes({"brokers": []})
    []
    """
    found: list[int] = []
    _collect_errors(answer, found)
    return found


def _collect_errors(tree: Mapping[str, Any], found: list[int]) -> None:
    for name, value in tree.items():
        if name in _ERROR_CODES:
            if value:
                found.append(int(value))
        elif isinstance(value, list | tuple):
            for item in value:
                if not isinstance(item, dict):
                    break  # arrays are homogeneous
                _collect_errors(item, found)
        elif isinstance(value, dict):
            _collect_errors(value, found)
