"""The counters of `headwater.logtier.runtime.metrics` and the state of the broker as Prometheus families."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from headwater.logtier.group.registry import AnyGroup, group_state, group_type
from headwater.logtier.handlers.context import Services
from headwater.logtier.log.cleaning.cleaner import CleanerCounters
from headwater.logtier.log.retention_holds import HoldState
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.metrics import BrokerMetrics, Histogram

PREFIX = "headwater_"


def request_families(metrics: BrokerMetrics) -> Iterator[Metric]:
    """Requests by API: times, sizes, error codes; and the lag of the event loop."""
    seconds = HistogramMetricFamily(
        PREFIX + "request_seconds",
        "Time from the last byte of a request to its response, including the wait of a fetch for data.",
        labels=["api"],
    )
    errors = CounterMetricFamily(
        PREFIX + "request_errors",
        "Error codes in responses, NONE for a response without errors; a response may have one per partition.",
        labels=["api", "error"],
    )
    size = CounterMetricFamily(PREFIX + "request_bytes", "Bytes of requests.", labels=["api"])
    for api_key, api in sorted(metrics.apis.items()):
        name = kafka_name(api_key)
        seconds.add_metric([name], buckets_of(api.seconds), api.seconds.sum)
        size.add_metric([name], api.request_bytes)
        for code, count in sorted(api.errors.items()):
            errors.add_metric([name, error_name(code)], count)
    yield from (seconds, errors, size)
    lag = HistogramMetricFamily(PREFIX + "event_loop_lag_seconds", "Delay of the event loop in serving a timer.")
    lag.add_metric([], buckets_of(metrics.loop_lag), metrics.loop_lag.sum)
    yield lag


def topic_families(metrics: BrokerMetrics) -> Iterator[Metric]:
    """Traffic by topic."""
    families = {
        "messages_in": CounterMetricFamily(PREFIX + "topic_messages_in", "Records produced.", labels=["topic"]),
        "bytes_in": CounterMetricFamily(PREFIX + "topic_bytes_in", "Bytes of batches produced.", labels=["topic"]),
        "bytes_out": CounterMetricFamily(PREFIX + "topic_bytes_out", "Bytes of batches fetched.", labels=["topic"]),
        "failed_produces": CounterMetricFamily(
            PREFIX + "topic_failed_produces", "Refused writes to a partition.", labels=["topic"]
        ),
        "failed_fetches": CounterMetricFamily(
            PREFIX + "topic_failed_fetches", "Refused reads of a partition.", labels=["topic"]
        ),
    }
    for topic, traffic in sorted(metrics.topics.items()):
        for name, family in families.items():
            family.add_metric([topic], getattr(traffic, name))
    yield from families.values()


def broker_families(services: Services, groups: Iterable[AnyGroup], connections: Mapping[str, int]) -> Iterator[Metric]:
    """State of the broker: groups by state, delayed requests, fetch sessions, connections by listener."""
    by_state = GaugeMetricFamily(PREFIX + "groups", "Groups coordinated here.", labels=["protocol", "state"])
    for (protocol, state), count in sorted(
        Counter((group_type(group), group_state(group)) for group in groups).items()
    ):
        by_state.add_metric([protocol, state], count)
    yield by_state
    transactions = GaugeMetricFamily(PREFIX + "transactions", "Transactional ids coordinated here.", labels=["state"])
    states = Counter(metadata.state.title for _, metadata in services.transactions.loaded_transactions())
    for name, count in sorted(states.items()):
        transactions.add_metric([name], count)
    yield transactions
    open_connections = GaugeMetricFamily(PREFIX + "connections", "Connections of clients.", labels=["listener"])
    for listener, count in sorted(connections.items()):
        open_connections.add_metric([listener], count)
    yield open_connections
    yield GaugeMetricFamily(
        PREFIX + "purgatory_size",
        "Requests that wait for a change of a partition.",
        value=services.replica_manager.delayed_operations,
    )
    yield GaugeMetricFamily(
        PREFIX + "fetch_sessions", "Incremental fetch sessions.", value=len(services.fetch_sessions)
    )
    yield GaugeMetricFamily(
        PREFIX + "offline_partitions",
        "Partitions of this broker without a usable log.",
        value=services.replica_manager.unusable_partitions,
    )


def cleaner_families(counters: CleanerCounters) -> Iterator[Metric]:
    """Counters of compaction."""
    for name, documentation, count in (
        ("runs", "Successful cleanings of a log.", counters.runs),
        ("failures", "Failed cleanings of a log.", counters.failures),
        ("bytes_read", "Bytes read by compaction, in both passes.", counters.bytes_read),
        ("bytes_written", "Bytes written by compaction.", counters.bytes_written),
        ("records_read", "Records read by compaction.", counters.records_read),
        ("records_kept", "Records kept by compaction.", counters.records_kept),
    ):
        yield CounterMetricFamily(f"{PREFIX}cleaner_{name}", documentation, value=count)
    for name, documentation, value in (
        ("last_run_seconds", "Duration of the last cleaning.", counters.last_run_ms / 1000),
        ("dirty_ratio_max", "Dirty share of the dirtiest log.", counters.dirty_ratio_max),
        (
            "uncleanable_logs",
            "Logs that are no longer cleaned; the broker's log has the reason.",
            len(counters.uncleanable),
        ),
    ):
        yield GaugeMetricFamily(f"{PREFIX}cleaner_{name}", documentation, value=value)


def hold_families(holds: Mapping[TopicPartition, HoldState]) -> Iterator[Metric]:
    """What groups hold back from retention and compaction, for topics with `retention.hold.groups`."""
    labels = ["topic", "partition"]
    held = GaugeMetricFamily(
        PREFIX + "retention_held_bytes", "Bytes that stay only because of retention.hold.groups.", labels=labels
    )
    limit = GaugeMetricFamily(
        PREFIX + "retention_hold_max_bytes", "Limit of the held bytes; absent without one.", labels=labels
    )
    given_up = CounterMetricFamily(
        PREFIX + "retention_hold_given_up_bytes",
        "Bytes deleted or compacted although groups held them, because the limit was reached.",
        labels=labels,
    )
    for (topic, partition), state in sorted(holds.items()):
        names = [topic, str(partition)]
        held.add_metric(names, state.held_bytes)
        if state.bytes_max >= 0:
            limit.add_metric(names, state.bytes_max)
        given_up.add_metric(names, state.given_up_bytes)
    yield from (held, limit, given_up)


def buckets_of(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, in Prometheus' format.

    >>> histogram = Histogram((1.0, 2.0))
    >>> for value in (0.5, 1.5, 7.0):
    ...     histogram.observe(value)
    >>> buckets_of(histogram)
    [('1.0', 1), ('2.0', 2), ('+Inf', 3)]
    """
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def kafka_name(api_key: int) -> str:
    """Kafka's name of an API.

    >>> kafka_name(36), kafka_name(24)
    ('SaslAuthenticate', 'AddPartitionsToTxn')
    """
    return "".join(word.capitalize() for word in messages.api_name(api_key).split("_"))


def error_name(code: int) -> str:
    """Kafka's name of an error code; an unknown code as a number.

    >>> error_name(0), error_name(3), error_name(9999)
    ('NONE', 'UNKNOWN_TOPIC_OR_PARTITION', '9999')
    """
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)
