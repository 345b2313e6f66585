"""A model of a cluster that carries out reassignments, in place of brokers: copies advance with its own clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from headwater.cli.reassignment.snapshot import ClusterSnapshot
from headwater.logtier.client.cluster import TopicPartition as ClientKey
from headwater.logtier.client.errors import BrokerConnectionError, broker_error
from headwater.logtier.client.ongoing_reassignment import OngoingReassignment
from headwater.logtier.client.replicas import (
    AssignedPartition,
    RegisteredBroker,
    ReplicaAdmin,
    ReplicaLogDir,
    ReplicaRefusal,
    ReplicaSize,
)
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition

TOPIC, BROKER = 2, 4


class ReassigningCluster(ReplicaAdmin):
    """Replicas that are added grow by `rate` bytes at each `sleep`; a reassignment ends when all of them are whole.

    Invariant, checked at each start: a partition keeps its number of replicas, or gets more if the client says so.
    """

    def __init__(self, snapshot: ClusterSnapshot, rate: int = 10) -> None:
        self.snapshot = snapshot
        self.rate = rate
        self.now_s = 0.0
        self.replicas: dict[TopicPartition, tuple[int, ...]] = {
            key: part.replicas for key, part in snapshot.partitions.items()
        }
        self.leaders = {key: part.leader for key, part in snapshot.partitions.items()}
        self.dirs = {
            (key, broker): path
            for key, part in snapshot.partitions.items()
            for broker, path in (part.log_dirs or {}).items()
        }
        self.targets: dict[TopicPartition, tuple[int, ...]] = {}
        self.sizes: Counter[tuple[TopicPartition, int]] = Counter()
        for (key, broker), _ in self.dirs.items():
            self.sizes[key, broker] = snapshot.partitions[key].size_bytes
        self.pinned: dict[tuple[TopicPartition, int], str] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.away: set[int] = set()
        self.busiest = 0
        self.started: list[TopicPartition] = []
        self.refusals: dict[TopicPartition, list[ReplicaRefusal]] = {}
        self.outage_s = 0.0
        self.interrupt_at_s: float | None = None
        self.stuck: set[TopicPartition] = set()
        self.hidden_topics: set[str] = set()

    # -- time --------------------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float, /) -> None:
        self.now_s += seconds
        self.advance()
        if self.interrupt_at_s is not None and self.now_s >= self.interrupt_at_s:
            raise KeyboardInterrupt

    def uninterrupted(self) -> AbstractContextManager[None]:
        return nullcontext()

    def advance(self) -> None:
        for key in sorted(self.targets):
            size = self.snapshot.partitions[key].size_bytes
            adding = [each for each in self.targets[key] if each not in self.replicas[key]]
            for broker in adding:
                if broker not in self.away and key not in self.stuck:
                    self.sizes[key, broker] = min(self.sizes[key, broker] + self.rate, size)
            if key not in self.stuck and all(
                self.sizes[key, each] == size and each not in self.away for each in adding
            ):
                self._finish(key)

    def _finish(self, key: TopicPartition) -> None:
        target = self.targets.pop(key)
        for broker in self.replicas[key]:
            if broker not in target:
                self.dirs.pop((key, broker), None)
                del self.sizes[key, broker]
        self.replicas[key] = target
        if self.leaders[key] not in target:
            self.leaders[key] = next(each for each in target if each in self.snapshot.brokers)

    def finish_all(self) -> None:
        """Let all running reassignments end."""
        while self.targets:
            self.advance()

    # -- reading -----------------------------------------------------------------------------------------------------

    def _check_outage(self) -> None:
        if self.now_s < self.outage_s:
            raise BrokerConnectionError("nobody is there")

    def assignments(
        self, topics: Iterable[str] | None = None
    ) -> tuple[dict[int, RegisteredBroker], list[AssignedPartition]]:
        self._check_outage()
        wanted = None if topics is None else set(topics)
        brokers = {
            each.broker_id: RegisteredBroker(each.broker_id, each.rack)
            for each in self.snapshot.brokers.values()
            if each.broker_id not in self.away
        }
        if wanted is not None and wanted & self.hidden_topics:
            raise broker_error(ErrorCode.topic_authorization_failed, "the metadata of a topic")
        found = []
        for key, replicas in self.replicas.items():
            if key.topic not in self.hidden_topics if wanted is None else key.topic in wanted:
                target = self.targets.get(key, ())
                both = (*target, *(each for each in replicas if each not in target)) if target else replicas
                in_sync = tuple(each for each in both if each in brokers and (each in replicas))
                found.append(AssignedPartition(*key, self.leaders[key], both, in_sync))
        return brokers, found

    def log_dirs(
        self, broker_id: int, topics: Mapping[str, Sequence[int]] | None = None
    ) -> tuple[ReplicaLogDir, ...] | None:
        self._check_outage()
        if broker_id in self.away:
            return None
        found = []
        for folder in self.snapshot.brokers[broker_id].log_dirs:
            here = [key for (key, broker), path in self.dirs.items() if broker == broker_id and path == folder.path]
            sizes = tuple(
                ReplicaSize(*key, self.sizes[key, broker_id], False)
                for key in here
                if topics is None or key.partition in topics.get(key.topic, ())
            )
            usable = folder.usable_bytes
            if usable is not None:
                usable -= self._used(broker_id, folder.path) - self._used_at_start(broker_id, folder.path)
            found.append(ReplicaLogDir(folder.path, folder.total_bytes, usable, sizes))
        return tuple(found)

    def _used(self, broker_id: int, path: str) -> int:
        return sum(
            self.sizes[key, broker] for (key, broker), each in self.dirs.items() if (broker, each) == (broker_id, path)
        )

    def _used_at_start(self, broker_id: int, path: str) -> int:
        return sum(
            part.size_bytes
            for part in self.snapshot.partitions.values()
            if (part.log_dirs or {}).get(broker_id) == path
        )

    def reassignments(self) -> dict[ClientKey, OngoingReassignment]:
        self._check_outage()
        found: dict[ClientKey, OngoingReassignment] = {}
        for key, target in self.targets.items():
            old = self.replicas[key]
            both = (*target, *(each for each in old if each not in target))
            adding = tuple(each for each in target if each not in old)
            found[key] = OngoingReassignment(both, adding, tuple(each for each in old if each not in target))
        return found

    def dynamic_configs(
        self, resource_type: int, names: Sequence[str], configs: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        found = {}
        for name in names:
            values = self.configs.get((resource_type, name), {})
            if some := {each: values[each] for each in configs if each in values}:
                found[name] = some
        return found

    # -- changing ----------------------------------------------------------------------------------------------------

    def reassign(
        self, targets: Mapping[ClientKey, Sequence[int]], *, changes_factor: bool = False
    ) -> dict[ClientKey, ReplicaRefusal]:
        self._check_outage()
        refused: dict[ClientKey, ReplicaRefusal] = {}
        for (topic, number), wanted in targets.items():
            key = TopicPartition(topic, number)
            if self.refusals.get(key):
                refused[key] = self.refusals[key].pop(0)
                continue
            target = tuple(wanted)
            assert len(set(target)) == len(target)
            assert len(target) == len(self.replicas[key]) or (changes_factor and len(target) > len(self.replicas[key]))
            self.started.append(key)
            self.targets[key] = target
            for broker in target:
                if broker not in self.replicas[key]:
                    folders = self.snapshot.brokers[broker].log_dirs
                    self.dirs.setdefault((key, broker), self.pinned.pop((key, broker), folders[0].path))
        busy: Counter[int] = Counter()
        for key, target in self.targets.items():
            adding = {each for each in target if each not in self.replicas[key]}
            leader = self.leaders[key]
            busy.update(adding | ({leader} if adding and leader is not None else set()))
        self.busiest = max(self.busiest, *busy.values(), 0)
        return refused

    def place(self, broker_id: int, paths: Mapping[ClientKey, str]) -> dict[ClientKey, ReplicaRefusal]:
        for (topic, number), path in paths.items():
            key = TopicPartition(topic, number)
            if (key, broker_id) in self.dirs:
                self.dirs[key, broker_id] = path
            else:
                self.pinned[key, broker_id] = path
        return {}

    def elect_preferred(self, partitions: Sequence[ClientKey]) -> dict[ClientKey, ReplicaRefusal]:
        for topic, number in partitions:
            key = TopicPartition(topic, number)
            self.leaders[key] = self.replicas[key][0]
        return {}

    def alter_configs(self, resource_type: int, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        self._check_outage()
        for name, values in changes.items():
            present = self.configs.setdefault((resource_type, name), {})
            for config, value in values.items():
                if value is None:
                    present.pop(config, None)
                else:
                    present[config] = value

    @property
    def configs_set(self) -> dict[tuple[int, str], dict[str, str]]:
        """Configs that are set, without empty resources."""
        return {resource: values for resource, values in self.configs.items() if values}
