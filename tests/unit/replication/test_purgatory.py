from collections.abc import Callable
from dataclasses import dataclass, field

from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.purgatory import Purgatory

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class FakeTimer:
    call: Callable[[], None]
    delay_s: float
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class FakeLoop:
    timers: list[FakeTimer] = field(default_factory=list)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(call, delay_s))
        return self.timers[-1]


@dataclass
class Waiting:
    ready: bool = False
    outcomes: list[str] = field(default_factory=list)
    asked: list[TopicPartition] = field(default_factory=list)

    def try_complete(self, moved: TopicPartition) -> bool:
        self.asked.append(moved)
        if self.ready:
            self.outcomes.append("completed")
        return self.ready

    def expire(self) -> None:
        self.outcomes.append("expired")


def test_a_check_of_any_of_its_partitions_completes_an_operation_once() -> None:
    loop = FakeLoop()
    purgatory = Purgatory(loop.call_later)
    waiting = Waiting()
    purgatory.watch(waiting, (P0, P1), 0.5)
    purgatory.check(P0)
    assert waiting.outcomes == []
    waiting.ready = True
    purgatory.check(P1)
    purgatory.check(P0)
    assert waiting.outcomes == ["completed"]
    assert waiting.asked == [P0, P1]
    assert loop.timers[0].cancelled
    assert (len(purgatory), purgatory.watched_partitions) == (0, 0)


def test_time_over_expires_an_operation_once() -> None:
    loop = FakeLoop()
    purgatory = Purgatory(loop.call_later)
    waiting = Waiting()
    purgatory.watch(waiting, (P0,), 0.5)
    loop.timers[0].call()
    waiting.ready = True
    purgatory.check(P0)
    assert waiting.outcomes == ["expired"]
    assert (len(purgatory), purgatory.watched_partitions) == (0, 0)


def test_a_forgotten_operation_hears_nothing_more() -> None:
    loop = FakeLoop()
    purgatory = Purgatory(loop.call_later)
    waiting = Waiting(ready=True)
    watch = purgatory.watch(waiting, (P0, P1), 0.5)
    watch.forget()
    watch.forget()
    purgatory.check(P0)
    assert waiting.asked == []
    assert loop.timers[0].cancelled
    assert (len(purgatory), purgatory.watched_partitions) == (0, 0)


def test_operations_of_one_partition_complete_independently() -> None:
    loop = FakeLoop()
    purgatory = Purgatory(loop.call_later)
    first, second = Waiting(), Waiting(ready=True)
    purgatory.watch(first, (P0,), 0.5)
    purgatory.watch(second, (P0,), 0.5)
    purgatory.check(P0)
    assert (first.outcomes, second.outcomes) == ([], ["completed"])
    assert len(purgatory) == 1
