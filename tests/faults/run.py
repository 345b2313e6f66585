"""A run: clients at work, one fault after the other, and a verdict from every replica's files."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.bench.processes import Failed
from tests.faults.clients import KEYS, SILENT, NumberProducer, WatchingConsumer
from tests.faults.full_isrs import FULL_S, await_full_isrs
from tests.faults.java_clients import COPIERS, Copier, JavaProducer
from tests.faults.links import ZOOKEEPER
from tests.faults.movers import GROUP, Mover, read_committed
from tests.faults.offset_watcher import OffsetWatcher
from tests.faults.processes import SESSION_S, FaultyCluster, until
from tests.faults.replica_logs import read_replica
from tests.faults.small_disk import SmallDisk, can_mount
from tests.faults.verdict import anomalies, moved_anomalies

#: Topics by name: replicas, and members of the ISR that acks=all needs.
TOPICS = {"safe": 2, "lean": 1}
#: Topics of what applications move in transactions, of Python and of Java.
MOVED, COPIED = "moved", "copied"
MOVERS = 2
MOVED_S = 120
PARTITIONS = 3
#: Room of the broker whose disk gets full, for all that a run writes.
SMALL_DISK_BYTES = 192 << 20
FLUSH_S = 120
#: Work between two faults.
CALM_S = 2.0
#: Short, so that a follower that is frozen leaves the ISR within its freeze.
PROPERTIES = {
    "replica.lag.time.max.ms": 3000,
    "log.segment.bytes": 1 << 20,
    "num.partitions": PARTITIONS,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "min.insync.replicas": 2,
}


@dataclass
class Outcome:
    """What a run found."""

    seed: int
    faults: list[str] = field(default_factory=list)
    acknowledged: int = 0
    moved: int = 0
    copied: int = 0
    hangs: int = 0
    anomalies: list[str] = field(default_factory=list)


class FaultRun:
    """One run in a folder of its own; `run` returns its outcome."""

    def __init__(self, folder: Path, seed: int, duration_s: float, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._cluster = FaultyCluster(folder, properties=PROPERTIES, slow_disks=True)
        self._chance = random.Random(seed)
        self._duration_s = duration_s
        self._say = say
        self._outcome = Outcome(seed)
        self._faults: list[Callable[[], str]] = [
            self._kill_leader,
            self._kill_controller,
            self._kill_all,
            self._freeze_leader,
            self._kill_two,
            self._kill_coordinator,
            self._kill_zookeeper,
            self._freeze_zookeeper,
            self._freeze_shortly,
            self._cut_one_way,
            self._isolate,
            self._cut_zookeeper,
            self._restart_all,
            self._slow_disk,
        ]
        self._small_id = self._chance.choice(list(self._cluster.brokers))
        self._small_disk = SmallDisk(self._cluster.brokers[self._small_id].data, SMALL_DISK_BYTES)

    def run(self) -> Outcome:
        """Run it.

        Raises:
            Failed: The cluster does not come back after a fault, which is as bad as an anomaly.
        """
        cluster = self._cluster
        try:
            if can_mount() and self._small_disk.mount():
                self._faults.append(self._full_disk)
            else:
                self._say("no disk gets full: file systems cannot be mounted here, or not by this user")
            cluster.start()
            self._admin = AdminClient(
                {"bootstrap.servers": cluster.bootstrap_servers, "socket.timeout.ms": 10_000, "log_level": SILENT}
            )
            self._create_topics()
            producers: list[NumberProducer | JavaProducer] = []
            for number, topic in enumerate(TOPICS):
                producers.append(NumberProducer(topic, cluster.bootstrap_servers, topic))
                producers.append(JavaProducer(number, self._folder, cluster.bootstrap_servers, topic))
            consumers = [WatchingConsumer(f"see-{t}", cluster.bootstrap_servers, t, PARTITIONS) for t in TOPICS]
            movers = [Mover(f"mover{each}", cluster.bootstrap_servers, "safe", MOVED) for each in range(MOVERS)]
            copier = Copier(self._outcome.seed, self._folder, cluster.bootstrap_servers, "safe", COPIED)
            watcher = OffsetWatcher(cluster.bootstrap_servers, [GROUP, COPIERS], "safe", PARTITIONS)
            others: list[WatchingConsumer | Mover | Copier | OffsetWatcher] = [*consumers, *movers, copier, watcher]
            for client in (*producers, *others):
                client.start()
            try:
                # Java's producer goes on to the new leader while older batches still fail at the former one, and the
                # log accepts any sequence as a producer's first. If that is not its first batch, it waits until
                # delivery.timeout.ms: so no fault comes before each partition knows the producer.
                deadline_s = time.monotonic() + FULL_S
                while any(producer.keys_acknowledged() < KEYS for producer in producers):
                    until(deadline_s, "the producers did not begin")
                self._do_faults()
                missing = sum(producer.finish(FLUSH_S) for producer in producers)
                copier.finish()
                self._await_moved(producers)
            except BaseException:
                for producer in producers:
                    producer.finish(0)
                raise
            finally:
                for other in others:
                    other.finish()
            self._judge(producers, consumers, missing)
            for other in others:
                self._outcome.anomalies += other.errors[:5]
            if not watcher.answers:
                self._outcome.anomalies.append("nobody answered what offsets the groups have committed")
            self._outcome.moved = sum(mover.moved for mover in movers)
            self._outcome.hangs = sum(mover.hangs for mover in movers)
            return self._outcome
        except Failed as error:
            tails = "\n".join(broker.tail() for broker in cluster.brokers.values())
            raise Failed(f"seed {self._outcome.seed}, faults {self._outcome.faults}: {error}\n{tails}") from None
        finally:
            cluster.end()
            self._small_disk.unmount()

    def _create_topics(self) -> None:
        topics = [
            NewTopic(
                name, num_partitions=PARTITIONS, replication_factor=3, config={"min.insync.replicas": str(min_isr)}
            )
            for name, min_isr in {**TOPICS, MOVED: 2, COPIED: 2}.items()
        ]
        deadline_s = time.monotonic() + FULL_S
        while len(self._admin.list_topics(timeout=10).brokers) < len(self._cluster.brokers):
            until(deadline_s, "the brokers did not all register")
        for future in self._admin.create_topics(topics).values():
            future.result(60)
        self._await_full()
        self._await_leaders([TopicPartition(name, each) for name in TOPICS for each in range(PARTITIONS)])

    def _await_leaders(self, partitions: list[TopicPartition]) -> None:
        """Wait until each leader knows that it is one.

        The ISR of a new partition is full before its leader has heard of it, and librdkafka gives up a consumer's first
        question for an offset when the leader answers UNKNOWN_TOPIC_OR_PARTITION.
        """
        earliest: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        deadline_s = time.monotonic() + FULL_S
        while True:
            answers = self._admin.list_offsets(dict.fromkeys(partitions, earliest), request_timeout=10)
            errors = {key: error for key, answer in answers.items() if (error := answer.exception(60)) is not None}
            if not errors:
                return
            until(deadline_s, f"not every leader has heard of its partitions ({errors})")

    def _do_faults(self) -> None:
        order: list[Callable[[], str]] = []
        end_s = time.monotonic() + self._duration_s
        time.sleep(CALM_S)
        while time.monotonic() < end_s:
            if not order:
                order = self._chance.sample(self._faults, len(self._faults))
            what = order.pop()()
            self._outcome.faults.append(what)
            self._say(what)
            self._cluster.start_missing()
            self._await_full()
            time.sleep(CALM_S)

    def _judge(
        self, producers: list[NumberProducer | JavaProducer], consumers: list[WatchingConsumer], missing: int
    ) -> None:
        outcome = self._outcome
        self._await_full()
        self._cluster.stop_cleanly()
        logs = {
            (topic, partition): {
                node_id: read_replica(broker.data, topic, partition)
                for node_id, broker in self._cluster.brokers.items()
            }
            for topic in TOPICS
            for partition in range(PARTITIONS)
        }
        acknowledged = [each for producer in producers for each in producer.acknowledged]
        seen = [
            (consumer.topic, partition, values) for consumer in consumers for partition, values in consumer.seen.items()
        ]
        outcome.acknowledged = len(acknowledged)
        if missing:
            outcome.anomalies.append(f"{missing} records were not acknowledged within {FLUSH_S} s after the last fault")
        for producer in producers:
            outcome.anomalies += producer.errors[:5]
        outcome.anomalies += anomalies(logs, acknowledged, seen)

    def _await_moved(self, producers: list[NumberProducer | JavaProducer]) -> None:
        """Wait until the applications have committed what was acknowledged, each record once."""
        sent = [each.value for producer in producers if producer.topic == "safe" for each in producer.acknowledged]
        for target in (MOVED, COPIED):
            moved = read_committed(self._cluster.bootstrap_servers, target, PARTITIONS, len(sent), MOVED_S)
            self._outcome.anomalies += [f"{target}: {line}" for line in moved_anomalies(sent, moved)]
            if target == COPIED:
                self._outcome.copied = len(moved)

    # -- faults

    def _kill_leader(self) -> str:
        node_id = self._leader()
        self._cluster.brokers[node_id].kill()
        self._pause(2 * SESSION_S)
        return f"kill -9 of broker {node_id}, a leader"

    def _kill_controller(self) -> str:
        node_id = self._controller()
        self._cluster.brokers[node_id].kill()
        self._pause(2 * SESSION_S)
        return f"kill -9 of broker {node_id}, the controller"

    def _kill_all(self) -> str:
        for broker in self._cluster.brokers.values():
            broker.kill()
        self._pause(1)
        return "kill -9 of all brokers"

    def _freeze_leader(self) -> str:
        node_id = self._leader()
        broker = self._cluster.brokers[node_id]
        broker.freeze()
        try:
            time.sleep(2 * SESSION_S)
        finally:
            broker.thaw()
        return f"SIGSTOP of broker {node_id}, a leader, for two sessions"

    def _freeze_shortly(self) -> str:
        node_id = self._leader()
        broker = self._cluster.brokers[node_id]
        broker.freeze()
        try:
            time.sleep(SESSION_S / 3)
        finally:
            broker.thaw()
        return f"SIGSTOP of broker {node_id}, a leader, for a third of a session"

    def _cut_one_way(self) -> str:
        source, target = self._chance.sample(list(self._cluster.brokers), 2)
        self._cut_for_a_while((source, target))
        return f"nothing arrives from broker {source} at {target}"

    def _isolate(self) -> str:
        node_id = self._leader()
        others = [each for each in self._cluster.brokers if each != node_id]
        self._cut_for_a_while(*[(node_id, each) for each in others], *[(each, node_id) for each in others])
        return f"broker {node_id}, a leader, is cut off the others"

    def _cut_zookeeper(self) -> str:
        node_id = self._leader() if self._chance.random() < 0.5 else self._controller()
        self._cut_for_a_while((node_id, ZOOKEEPER), (ZOOKEEPER, node_id))
        return f"broker {node_id} is cut off ZooKeeper"

    def _cut_for_a_while(self, *directions: tuple[int, int]) -> None:
        self._cluster.links.cut(*directions)
        try:
            self._pause(4 * SESSION_S)
        finally:
            self._cluster.links.heal(reset=self._chance.random() < 0.5)

    def _restart_all(self) -> str:
        for broker in self._cluster.brokers.values():
            broker.terminate()
            self._cluster.start_missing()
            self._await_full()
        return "a rolling restart"

    def _kill_two(self) -> str:
        first, second = self._chance.sample(list(self._cluster.brokers), 2)
        self._cluster.brokers[first].kill()
        self._pause(2 * SESSION_S)
        self._cluster.brokers[second].kill()
        self._pause(2 * SESSION_S)
        return f"kill -9 of broker {first}, then of {second}"

    def _kill_coordinator(self) -> str:
        node_id = self._leader("__consumer_offsets" if self._chance.random() < 0.5 else "__transaction_state")
        self._cluster.brokers[node_id].kill()
        self._pause(2 * SESSION_S)
        return f"kill -9 of broker {node_id}, a coordinator"

    def _kill_zookeeper(self) -> str:
        self._cluster.zookeeper.kill()
        self._pause(3 * SESSION_S)
        self._cluster.zookeeper.start()
        self._cluster.zookeeper.await_ready()
        return "kill -9 of ZooKeeper"

    def _freeze_zookeeper(self) -> str:
        self._cluster.zookeeper.freeze()
        try:
            self._pause(3 * SESSION_S)
        finally:
            self._cluster.zookeeper.thaw()
        return "SIGSTOP of ZooKeeper"

    def _slow_disk(self) -> str:
        node_id = self._leader()
        broker = self._cluster.brokers[node_id]
        broker.slow_down()
        try:
            self._pause(4 * SESSION_S)
        finally:
            broker.speed_up()
        return f"the disk of broker {node_id}, a leader, is slow"

    def _full_disk(self) -> str:
        self._small_disk.fill()
        try:
            self._pause(4 * SESSION_S)
            is_killed = self._chance.random() < 0.5
            if is_killed:
                self._cluster.brokers[self._small_id].kill()
        finally:
            self._small_disk.make_room()
        return f"the disk of broker {self._small_id} is full{', and it is killed' if is_killed else ''}"

    def _pause(self, longest_s: float) -> None:
        """Up to a time: short ones return before the session ends, long ones after it."""
        time.sleep(self._chance.uniform(0, longest_s))

    def _leader(self, topic: str = "safe") -> int:
        deadline_s = time.monotonic() + FULL_S
        while True:
            partition = self._chance.randrange(PARTITIONS)
            leader = self._admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader
            if leader in self._cluster.brokers:
                return int(leader)
            until(deadline_s, "a partition had no leader")

    def _controller(self) -> int:
        deadline_s = time.monotonic() + FULL_S
        while True:
            controller = self._admin.list_topics(timeout=10).controller_id
            if controller in self._cluster.brokers:
                return int(controller)
            until(deadline_s, "there was no controller")

    def _await_full(self) -> None:
        await_full_isrs(self._admin, len(self._cluster.brokers), (len(TOPICS) + 2) * PARTITIONS)
