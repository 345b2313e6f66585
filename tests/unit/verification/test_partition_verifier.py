"""The replicas of one partition on scripted brokers: what is compared while leaders move, logs shrink, brokers die."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from headwater.logtier.client.errors import BrokerConnectionError, ClientError, RequestTimeoutError, UnknownTopicError
from headwater.logtier.client.fetch_codec import CompletedFetch
from headwater.logtier.records.batch import Record, build_batch, iterate_batches
from headwater.verification.outcomes import PartitionOutcome, summary
from headwater.verification.partition_verifier import PATIENCE_S, PartitionVerifier
from headwater.verification.replica_source import PartitionReplicas

TOPIC = "flights"
NOT_LEADER_OR_FOLLOWER = 6
OUT_OF_RANGE = 1


def log(*values: str) -> bytes:
    """One batch a value, under a key of its own."""
    return b"".join(
        build_batch([Record(b"k%d" % offset, value.encode(), 1_000)], base_offset=offset)
        for offset, value in enumerate(values)
    )


@dataclass
class ScriptedBroker:
    """A replica: its log, and what it answers instead of it."""

    data: bytes
    log_start_offset: int = 0
    #: The watermark, where it is above the last batch.
    reported_end: int = 0
    answers_with: Callable[[int], CompletedFetch | ClientError | None] = lambda _: None

    @property
    def end_offset(self) -> int:
        return max(self.reported_end, *(header.last_offset + 1 for header, _ in iterate_batches(self.data)), 0)

    def fetch(self, offset: int, bytes_max: int) -> CompletedFetch | ClientError:
        if (instead := self.answers_with(offset)) is not None:
            return instead
        if not self.log_start_offset <= offset <= self.end_offset:
            return answer(b"", self, OUT_OF_RANGE)
        records = b""
        for header, batch in iterate_batches(self.data):
            if header.last_offset >= offset and (not records or len(records) + len(batch) <= bytes_max):
                records += batch
        return answer(records, self)


def answer(records: bytes, broker: ScriptedBroker, error_code: int = 0) -> CompletedFetch:
    end = broker.end_offset
    return CompletedFetch(TOPIC, 0, error_code, end, end, broker.log_start_offset, memoryview(records))


@dataclass
class ScriptedCluster:
    """The source of a verifier; time passes by its waits alone. `on_fetch` and `on_bounds` are called before."""

    brokers: dict[int, ScriptedBroker]
    isr: tuple[int, ...] = (1, 2, 3)
    offline: tuple[int, ...] = ()
    leader: int = 1
    topic_id: uuid.UUID = field(default_factory=uuid.uuid4)
    exists: bool = True
    on_fetch: Callable[[], None] = lambda: None
    on_bounds: Callable[[], None] = lambda: None
    time_s: float = 0.0
    fetch_bytes_max: int = 150

    def partitions(self, topic: str) -> Mapping[int, PartitionReplicas]:
        assert topic == TOPIC
        replicas = PartitionReplicas(self.topic_id, self.leader, tuple(self.brokers), self.isr, self.offline)
        return {0: replicas} if self.exists else {}

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        assert (topic, partition) == (TOPIC, 0)
        if not self.exists:
            raise UnknownTopicError(topic)
        self.on_bounds()
        broker = self.brokers[self.leader]
        return broker.log_start_offset, broker.end_offset

    def fetch(
        self, topic: str, partition: int, offsets: Mapping[int, int], bytes_max: int
    ) -> dict[int, CompletedFetch | ClientError]:
        assert (topic, partition) == (TOPIC, 0)
        self.on_fetch()
        size = min(bytes_max, self.fetch_bytes_max)
        return {broker: self.brokers[broker].fetch(offset, size) for broker, offset in offsets.items()}

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds

    def verify(self, *, is_compacted: bool = False) -> PartitionOutcome:
        verifier = PartitionVerifier(self, TOPIC, 0, is_compacted=is_compacted, progress=lambda *_: None)
        return verifier.run()


VALUES = [f"value {number}" for number in range(20)]


def cluster(*logs: bytes) -> ScriptedCluster:
    return ScriptedCluster({broker: ScriptedBroker(data) for broker, data in enumerate(logs, 1)})


def changed(offset: int) -> bytes:
    return log(*VALUES[:offset], "planted", *VALUES[offset + 1 :])


def test_three_equal_replicas() -> None:
    outcome = cluster(log(*VALUES), log(*VALUES), log(*VALUES)).verify()
    assert (outcome.compared, outcome.start_offset, outcome.end_offset) == ((1, 2, 3), 0, 20)
    assert outcome.compared_bytes == len(log(*VALUES))
    assert outcome.lines() == []


def test_a_difference_is_reported_once_and_the_other_replicas_are_compared_on() -> None:
    outcome = cluster(log(*VALUES), changed(7), log(*VALUES[:19], "planted")).verify()
    assert [(each.offset, each.brokers) for each in outcome.differences] == [(7, (1, 2)), (19, (1, 3))]
    assert outcome.lines()[0] == ("flights-0: DIFFERENT at offset 7, brokers 1 and 2: the value of the record differs")


def test_every_replica_is_compared_with_the_leaders() -> None:
    found = cluster(changed(4), log(*VALUES), log(*VALUES))
    found.leader = 2
    assert [(each.offset, each.brokers) for each in found.verify().differences] == [(4, (2, 1))]


def test_a_difference_that_is_gone_at_a_second_look_is_none() -> None:
    """As after an unclean election: a follower truncates what it should not have."""
    found = cluster(log(*VALUES), changed(7), log(*VALUES))

    def mend() -> None:
        if found.time_s > 0:
            found.brokers[2].data = log(*VALUES)

    found.on_fetch = mend
    assert found.verify().differences == []


def test_a_difference_in_the_last_batch_of_a_window_is_found_too() -> None:
    for offset in range(20):
        [difference] = cluster(log(*VALUES), changed(offset)).verify().differences
        assert difference.offset == offset


def test_replicas_out_of_the_isr_or_offline_are_listed_and_not_compared() -> None:
    found = cluster(log(*VALUES), changed(3), log(*VALUES), changed(5))
    found.isr, found.offline = (1, 3, 4), (4,)
    outcome = found.verify()
    assert outcome.compared == (1, 3)
    assert outcome.skipped == {2: "not in the ISR", 4: "offline"}
    assert outcome.differences == []


def test_a_partition_with_nothing_to_compare_says_why() -> None:
    found = cluster(log(*VALUES), log(*VALUES))
    found.isr = (1,)
    assert found.verify().note == "it has 1 replica in the ISR to compare"
    found.leader = -1
    assert found.verify().note == "it has no leader"
    found.exists = False
    assert found.verify().note == "the topic was deleted"


def test_retention_raises_the_log_start_while_the_comparison_runs() -> None:
    found = cluster(log(*VALUES), log(*VALUES))

    def delete() -> None:
        """One broker only so far: the other one deletes its segments later."""
        found.brokers[2].log_start_offset = 11
        kept = [bytes(data) for header, data in iterate_batches(log(*VALUES)) if header.last_offset >= 11]
        found.brokers[2].data = b"".join(kept)

    found.on_fetch = delete
    outcome = found.verify()
    assert outcome.differences == []
    assert (outcome.start_offset, outcome.end_offset) == (11, 20)


def test_a_batch_that_delete_records_has_cut_is_compared_whole() -> None:
    whole = build_batch([Record(b"a", b"1"), Record(b"b", b"2")])
    other = build_batch([Record(b"a", b"1"), Record(b"b", b"X")])
    found = cluster(whole, other)
    for broker in found.brokers.values():
        broker.log_start_offset = 1
    assert [each.offset for each in found.verify().differences] == [1]


def test_a_moving_leader_and_a_lost_connection_are_tried_again() -> None:
    found = cluster(log(*VALUES), log(*VALUES), log(*VALUES))
    answers: list[CompletedFetch | ClientError] = [
        BrokerConnectionError("it died"),
        answer(b"", found.brokers[1], NOT_LEADER_OR_FOLLOWER),
        answer(b"", found.brokers[1]),
    ]
    found.brokers[1].answers_with = lambda _: answers.pop() if answers else None
    outcome = found.verify()
    assert not answers
    assert (outcome.compared, outcome.lines()) == ((1, 2, 3), [])


def test_a_first_replica_that_leaves_the_isr_leaves_the_others_to_be_compared() -> None:
    found = cluster(log(*VALUES), log(*VALUES), changed(15))
    calls = iter(range(1_000))

    def die() -> None:
        if next(calls) == 2:
            found.brokers[1].answers_with = lambda _: BrokerConnectionError("it died")
            found.isr, found.leader = (2, 3), 2

    found.on_fetch = die
    outcome = found.verify()
    assert [(each.offset, each.brokers) for each in outcome.differences] == [(15, (2, 3))]
    assert outcome.skipped[1].startswith("not in the ISR since the comparison reached offset ")


def test_a_broker_that_is_silent_for_long_is_listed_and_one_that_lacks_records_differs() -> None:
    silent = cluster(log(*VALUES), log(*VALUES), log(*VALUES))
    silent.brokers[2].answers_with = lambda _: BrokerConnectionError("no answer")
    outcome = silent.verify()
    assert outcome.differences == []
    assert outcome.compared == (1, 3)
    assert "no answer" in outcome.skipped[2]
    assert silent.time_s >= PATIENCE_S
    short = cluster(log(*VALUES), log(*VALUES[:12]), log(*VALUES))
    short.brokers[2].answers_with = lambda offset: answer(b"", short.brokers[2]) if offset >= 12 else None
    [difference] = short.verify().differences
    assert (difference.offset, difference.brokers) == (12, (1, 2))
    assert "it has no records from there on" in difference.reason


def test_a_difference_that_cannot_be_read_again_is_no_equality() -> None:
    found = cluster(log(*VALUES), changed(7), log(*VALUES))
    reads: list[int] = []

    def dies(offset: int) -> ClientError | None:
        reads.append(offset)
        return RequestTimeoutError("broker 2 did not answer") if reads.count(7) > 1 else None

    found.fetch_bytes_max = 10_000
    found.brokers[2].answers_with = lambda offset: dies(7)
    outcome = found.verify()
    assert (outcome.compared, outcome.differences) == ((1, 3), [])
    reason = "it seems to differ from broker 1 at offset 7, and broker 2 does not answer again"
    assert outcome.lines() == [f"flights-0: not compared, broker 2: {reason}"]
    assert "no difference, and 1 that could not be read a second time" in summary([outcome])


def test_a_difference_whose_replica_leaves_the_isr_before_the_second_look_is_no_equality() -> None:
    found = cluster(log(*VALUES), changed(7), log(*VALUES))
    found.fetch_bytes_max = 10_000
    fetches: list[int] = []

    def leaves() -> None:
        fetches.append(1)
        if len(fetches) == 2:
            found.isr = (2, 3)

    found.on_fetch = leaves
    outcome = found.verify()
    reason = "it seems to differ from broker 1 at offset 7, and broker 1 is not in the ISR since then"
    assert outcome.skipped[2] == reason
    assert outcome.unconfirmed == 1


def test_logs_that_an_unclean_election_has_cut_do_not_differ_by_that() -> None:
    found = cluster(log(*VALUES), log(*VALUES), log(*VALUES))
    bounds: list[int] = []

    def cut() -> None:
        bounds.append(1)
        if len(bounds) == 1:
            return
        for broker in found.brokers.values():
            broker.data = log(*VALUES[:15])

    def fetched() -> None:
        for broker in found.brokers.values():
            broker.data = log(*VALUES[:15])

    found.on_bounds, found.on_fetch = cut, fetched
    outcome = found.verify()
    assert outcome.differences == []
    assert outcome.lines() == ["flights-0: not compared: its end has fallen to 15 meanwhile; compared up to offset 15"]


def test_a_cleaned_log_may_end_in_nothing_and_may_not_lack_the_last_record_there() -> None:
    def cleaned(*kept: int) -> bytes:
        return b"".join(
            build_batch([Record(b"k%d" % (offset % 2), b"v%d" % offset, 1_000)], base_offset=offset) for offset in kept
        )

    tail = build_batch([Record(b"k0", None, 1_000)], base_offset=5)  # a tombstone, which cleaners remove in the end
    found = cluster(cleaned(3, 4) + tail, cleaned(3, 4), cleaned(3))
    for broker in found.brokers.values():
        broker.reported_end = 6
    outcome = found.verify(is_compacted=True)
    assert [(each.offset, each.brokers) for each in outcome.differences] == []
    assert outcome.compared == (1, 2, 3), "the tombstone replaces the record that broker 3 lacks"
    found = cluster(cleaned(3, 4), cleaned(3, 4), cleaned(3))
    for broker in found.brokers.values():
        broker.reported_end = 6
    assert [(each.offset, each.brokers) for each in found.verify(is_compacted=True).differences] == [(4, (1, 3))]
    assert found.time_s < PATIENCE_S


def test_a_topic_deleted_or_made_anew_meanwhile_has_no_differences() -> None:
    found = cluster(log(*VALUES), changed(3))

    def replace() -> None:
        found.topic_id = uuid.uuid4()

    found.on_fetch = replace
    outcome = found.verify()
    assert (outcome.differences, outcome.note) == ([], "the topic was deleted meanwhile")


def test_a_topic_deleted_before_its_lacking_records_are_explained_ends_no_other_comparison() -> None:
    """The ends are asked for again then, and nobody knows them."""
    whole = [(0, "a", "1"), (1, "b", "2"), (2, "a", "3"), (3, "c", "4")]
    found = cluster(compacted(*whole), compacted(whole[0], whole[2], whole[3]))
    found.fetch_bytes_max = len(compacted(*whole))

    def delete() -> None:
        found.exists = False

    found.on_fetch = delete
    outcome = found.verify(is_compacted=True)
    assert (outcome.differences, outcome.note) == ([], "the topic was deleted meanwhile")


def compacted(*kept: tuple[int, str, str]) -> bytes:
    return b"".join(
        build_batch([Record(key.encode(), value.encode(), 1_000)], base_offset=offset) for offset, key, value in kept
    )


def test_replicas_whose_cleaners_ran_at_different_times_are_equal() -> None:
    whole = [(0, "a", "1"), (1, "b", "2"), (2, "a", "3"), (3, "c", "4"), (4, "b", "5")]
    outcome = cluster(
        compacted(*whole), compacted(*whole[2:]), compacted(whole[0], whole[2], whole[3], whole[4])
    ).verify(is_compacted=True)
    assert (outcome.compared, outcome.lines()) == ((1, 2, 3), [])


def test_the_last_record_of_a_key_may_not_be_missing() -> None:
    whole = [(0, "a", "1"), (1, "b", "2"), (2, "a", "3"), (3, "c", "4")]
    outcome = cluster(compacted(*whole), compacted(whole[0], whole[2], whole[3])).verify(is_compacted=True)
    [difference] = outcome.differences
    assert difference.offset == 1
    assert difference.reason == "broker 2 lacks the record, which broker 1 has as the last one of its key"


def test_a_record_replaced_by_one_behind_the_end_may_be_missing() -> None:
    """The cleaner of one replica ran on while the comparison did, with records produced since it began."""
    found = cluster(compacted((0, "a", "1"), (1, "b", "2")), compacted((0, "a", "1"), (1, "b", "2")))

    def go_on() -> None:
        found.brokers[1].data = compacted((0, "a", "1"), (1, "b", "2"), (2, "a", "3"))
        found.brokers[2].data = compacted((1, "b", "2"), (2, "a", "3"))

    found.on_fetch = go_on
    outcome = found.verify(is_compacted=True)
    assert (outcome.differences, outcome.end_offset) == ([], 2)


def test_a_record_that_the_other_cleaner_has_removed_by_the_second_look_may_be_missing() -> None:
    found = cluster(compacted((0, "a", "1"), (5, "b", "2")), compacted((5, "b", "2")))

    def clean() -> None:
        if found.time_s > 0:
            found.brokers[1].data = compacted((5, "b", "2"))

    found.on_fetch = clean
    assert found.verify(is_compacted=True).differences == []


def test_a_partition_that_loses_its_leader_meanwhile_says_so_and_ends_alone() -> None:
    source = cluster(log(*VALUES), log(*VALUES), log(*VALUES))

    def lose_the_leader() -> None:
        source.leader = -1
        raise RequestTimeoutError("no leader for 60 s")

    source.on_bounds = lose_the_leader
    outcome = source.verify()
    assert (outcome.note, outcome.differences, outcome.compared) == ("it has lost its leader meanwhile", [], ())


def test_a_cluster_that_does_not_answer_ends_the_comparison() -> None:
    source = cluster(log(*VALUES), log(*VALUES), log(*VALUES))

    def fail() -> None:
        raise RequestTimeoutError("no answer for 60 s")

    source.on_bounds = fail
    with pytest.raises(RequestTimeoutError):
        source.verify()
