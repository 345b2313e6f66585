"""What is wrong with the logs after a run: pure, from what the clients were told and what the replicas hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tests.faults.clients import KEYS, Acknowledged
from tests.faults.replica_logs import ReplicaLog

Logs = Mapping[tuple[str, int], Mapping[int, ReplicaLog]]
"""The replicas by topic and partition, and by broker."""

SHOWN_MAX = 10


def anomalies(
    logs: Logs, acknowledged: Iterable[Acknowledged], seen: Sequence[tuple[str, int, list[bytes]]]
) -> list[str]:
    """Return one line for each thing that is wrong, at most a few of each kind.

    Args:
        seen: Topic, partition and values of each consumer, from offset 0 on.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for (topic, partition), replicas in logs.items():
        name = f"{topic}-{partition}"
        first = min(replicas)
        for broker_id, replica in replicas.items():
            if replica.data != replicas[first].data:
                found["replicas differ"].append(f"{name} differs on brokers {first} and {broker_id}")
        values = replicas[first].values
        for value, count in Counter(values.values()).items():
            if count > 1:
                found["doubled"].append(f"{name} has {value!r} {count} times")
        for key, numbers in _by_key(values).items():
            if numbers != sorted(numbers):
                found["out of order"].append(f"{name} has the numbers of {key} out of order")
    places = {
        key: {value: offset for offset, value in replicas[min(replicas)].values.items()}
        for key, replicas in logs.items()
    }
    for each in acknowledged:
        offset = places[each.topic, each.partition].get(each.value)
        if offset is None:
            found["lost"].append(f"lost: {each}")
        elif each.offset not in (-1, -1001, offset):
            found["elsewhere"].append(f"{each} lies at offset {offset}")
    for topic, partition, values_seen in seen:
        stored = logs[topic, partition][min(logs[topic, partition])].values
        for offset, value in enumerate(values_seen):
            if stored.get(offset) != value:
                found["seen"].append(
                    f"{topic}-{partition}: a consumer saw {value!r} at offset {offset}, the log has "
                    f"{stored.get(offset)!r}"
                )
                break
    return [line for lines in found.values() for line in lines[:SHOWN_MAX]]


def moved_anomalies(sent: Sequence[bytes], moved: Sequence[bytes]) -> list[str]:
    """Return one line for each thing that is wrong with what applications moved in transactions.

    Args:
        sent: Acknowledged values of the source.
        moved: Values of the committed records of the target, partition by partition.
    """
    counts = Counter(moved)
    lost = [f"not moved: {value!r}" for value in sent if value not in counts]
    doubled = [f"moved {count} times: {value!r}" for value, count in counts.items() if count > 1]
    unordered = [
        f"moved out of order: {key}"
        for key, numbers in _by_key(dict(enumerate(moved))).items()
        if numbers != sorted(numbers) and not doubled
    ]
    return [line for lines in (lost, doubled, unordered) for line in lines[:SHOWN_MAX]]


def _by_key(values: Mapping[int, bytes]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for offset in sorted(values):
        key, number = numbered(values[offset])
        found[key].append(number)
    return found


def numbered(value: bytes) -> tuple[str, int]:
    """The key of a record and its number among those of the key: KEY:NUMBER, or of Java PRODUCER.NUMBER."""
    head, colon, tail = value.decode().partition(":")
    if colon:
        return head, int(tail)
    producer, _, number = head.partition(".")
    return f"{producer}.{int(number) % KEYS}", int(number)
