"""The checks of a cluster tell a topic from an earlier one of its name."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Iterator

import pytest

from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage
from headwater.logtier.protocol import uuids
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.clients import Brokers, create_topic, delete_topic
from tests.simulation.cluster.checker import ClusterChecker
from tests.simulation.cluster.faults import ClusterFaults
from tests.simulation.cluster.metadata_checker import Replicated
from tests.simulation.cluster.run import REPLICATION_FACTOR, _ClusterRun
from tests.simulation.history import History
from tests.simulation.producers import Producer
from tests.simulation.run import conclude, until
from tests.simulation.virtual_loop import VirtualLoop

KEY = TopicPartition("anew", 0)
#: Several sessions with ZooKeeper.
LIMIT_S = 30.0


class _TopicMadeAnew(_ClusterRun):
    """A topic with one acknowledged batch; its leader is cut off from ZooKeeper while the topic is made anew."""

    async def _work(
        self,
        brokers: Brokers,
        cluster_faults: ClusterFaults,
        checker: ClusterChecker,
        running: list[asyncio.Task[None]],
    ) -> None:
        async with asyncio.timeout(LIMIT_S):
            await until(asyncio.create_task(self._make_anew(brokers, checker)), running)

    async def _make_anew(self, brokers: Brokers, checker: ClusterChecker) -> None:
        # ZooKeeper is cut off a broker that is not controller: the others make the topic anew within its session.
        while (controller := checker.metadata.image.controller_id) == NO_BROKER:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.01)
        first = self._producer(brokers)
        earlier = await self._make(first, checker, without=controller)
        await first.produce(KEY)
        node = checker._checkers[earlier.leader].node
        assert node.zookeeper is not None
        node.zookeeper.cut(node.name, requests=True, answers=True)
        second = self._producer(Brokers(brokers.network, [each for each in brokers.hosts if each != node.name]))
        await self._delete(second, checker)
        present = await self._make(second, checker, without=earlier.leader)
        await second.produce(KEY)
        self._check(checker, earlier, present)

    def _producer(self, brokers: Brokers) -> Producer:
        return Producer("p", brokers, self.history, self._draw(), [KEY], itertools.count())

    async def _make(self, producer: Producer, checker: ClusterChecker, *, without: int) -> PartitionImage:
        """Create the topic, again and again until another broker than `without` leads it."""
        while True:
            await create_topic(producer, KEY.topic, 1, {}, REPLICATION_FACTOR)
            _, state = _present(checker)
            if state.leader != without:
                return state
            await self._delete(producer, checker)

    async def _delete(self, producer: Producer, checker: ClusterChecker) -> None:
        self.history.forget_topic(KEY.topic)
        await delete_topic(producer, uuids.from_text(_present(checker)[0].topic_id))
        producer.restart()
        producer.forget_leaders()

    def _check(self, checker: ClusterChecker, earlier: PartitionImage, present: PartitionImage) -> None:
        partition = checker._checkers[earlier.leader].partition(KEY)
        assert partition is not None
        assert partition.is_leader, "the broker cut off has seen that the topic was deleted"
        assert partition.leader_epoch == present.leader_epoch
        assert partition.high_watermark > 0
        checker.check_all()


class _CommittedRecordReplaced(_TopicMadeAnew):
    """At the end, the leader of the present topic has another record than the committed one."""

    def _check(self, checker: ClusterChecker, earlier: PartitionImage, present: PartitionImage) -> None:
        committed = checker._committed[_present(checker)[0]]
        committed.batches[committed.end] = committed.batches[committed.end]._replace(checksum=0)
        checker.check_all()


def _present(checker: ClusterChecker) -> tuple[Replicated, PartitionImage]:
    [found] = [each for each in checker.metadata.all() if each[0].topic_partition == KEY]
    return found


def violation_of(kind: type[_TopicMadeAnew]) -> str | None:
    """Run a case without faults of chance."""
    loop = VirtualLoop(random.Random(1))
    history = History(may_lose=False)
    case = kind(loop, random.Random(2), [], history, 3, beyond=False)
    return conclude(loop, case.play(), 0, [], history).violation


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_broker_that_leads_an_earlier_topic_of_the_name_may_lack_the_records_of_the_present_one() -> None:
    assert violation_of(_TopicMadeAnew) is None


def test_the_leader_of_the_present_topic_has_to_have_its_committed_records() -> None:
    violation = violation_of(_CommittedRecordReplaced)
    assert violation is not None
    assert f"{KEY} " in violation
    assert "lacks what is committed" in violation
