"""A reader through changes of leaders: it follows the newest epoch, and never reads on in a log that lost its place."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest

from headwater.logtier.client import cluster as cluster_module
from headwater.logtier.client.cluster import EARLIEST, LATEST, ClusterClient, OffsetInEpoch
from headwater.logtier.client.coordinators import ask_group_coordinator
from headwater.logtier.client.errors import (
    UNKNOWN_TOPIC_OR_PARTITION,
    LogTruncationError,
    OffsetOutOfRangeError,
    RequestTimeoutError,
    UnknownTopicError,
)
from headwater.logtier.client.fetcher import FetchConfig, read_partition
from headwater.logtier.client.leaders.metadata import ClientMetadata
from headwater.logtier.client.messages import ApiKey
from headwater.logtier.records.batch import decode_records, iterate_batches
from tests.scripted_brokers import FENCED, KEY, NOT_LEADER, OUT_OF_RANGE, TOPIC, Belief, ScriptedBrokers

VALUES = [b"0", b"1", b"2", b"3"]
CONFIG = FetchConfig()


@pytest.fixture(autouse=True)
def _time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(cluster_module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))


def read(client: ClusterClient, start: int, end: int, planned_epoch: int = -1) -> list[bytes]:
    found = []
    for fetched in read_partition(client, TOPIC, 0, start, end, CONFIG, planned_epoch):
        for _, batch in iterate_batches(fetched.data):
            found += [bytes(record.value or b"") for record in decode_records(batch)]
    return found


def test_requests_carry_the_leader_epoch_of_the_metadata() -> None:
    brokers = ScriptedBrokers(1, leader=1, epoch=5, values={5: VALUES})
    client = brokers.client()
    assert client.listed_offsets({KEY: LATEST}) == {KEY: OffsetInEpoch(4, 5)}
    brokers.brokers[1].belief.epoch = 6
    assert client.listed_offsets({KEY: LATEST}) == {KEY: OffsetInEpoch(4, 6)}, "after a refusal and a refresh"
    assert read(client, 0, 4) == VALUES


def test_a_broker_that_is_behind_cannot_lead_a_client_back_to_a_former_leader() -> None:
    brokers = ScriptedBrokers(3, leader=1, epoch=5, values={5: VALUES})
    client = brokers.client()
    assert client.leader(*KEY) == 1
    brokers.elect(2, 6, 2)
    client.forget_leader(TOPIC)
    assert client.leader(*KEY) == 2, "another broker was asked than the one of the old metadata"
    for _ in brokers.brokers:  # brokers 1 and 3 still believe in epoch 5
        client.forget_leader(TOPIC)
        assert (client.leader(*KEY), client.leader_epoch(*KEY)) == (2, 6)


@pytest.mark.parametrize("code", [NOT_LEADER, FENCED])
def test_a_reader_follows_the_leadership_and_reads_each_record_once(code: int) -> None:
    brokers = ScriptedBrokers(3, leader=1, epoch=5, values={5: VALUES})
    client = brokers.client()
    reading = read_partition(client, TOPIC, 0, 0, 6, CONFIG)
    assert next(reading).next_offset == 4
    brokers.brokers[1].fetch_errors.append(code)
    brokers.elect(2, 6)
    brokers.brokers[2].log += [(6, b"4"), (6, b"5")]
    [(_, batch), (_, last)] = [found for fetched in reading for found in iterate_batches(fetched.data)]
    assert [record.value for record in (*decode_records(batch), *decode_records(last))] == [b"4", b"5"]
    assert ApiKey.OFFSET_FOR_LEADER_EPOCH in brokers.brokers[2].api_keys


def test_a_leader_that_dies_is_looked_up_at_the_others() -> None:
    brokers = ScriptedBrokers(3, leader=1, epoch=5, values={5: VALUES})
    client = brokers.client()
    assert client.list_offsets({KEY: EARLIEST}) == {KEY: 0}
    brokers.brokers[1].is_dead = True
    brokers.elect(3, 6)
    assert read(client, 0, 4) == VALUES
    brokers.brokers[2].is_dead = brokers.brokers[3].is_dead = True
    with pytest.raises(RequestTimeoutError, match="no broker answers"):
        client.list_offsets({KEY: LATEST})


def test_a_broker_that_names_a_former_coordinator_is_not_asked_for_ever() -> None:
    brokers = ScriptedBrokers(3, leader=3, epoch=5)
    client = brokers.client()
    brokers.elect(2, 6, 2, 3)  # broker 1, the first to be asked, is behind
    heartbeat = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    ask_group_coordinator(client, "g", "heartbeat", ApiKey.HEARTBEAT, heartbeat, lambda answer: int(answer.error_code))
    assert ApiKey.HEARTBEAT in brokers.brokers[2].api_keys


def test_records_that_were_read_and_are_lost_end_the_reading() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={5: VALUES})
    client = brokers.client()
    reading = read_partition(client, TOPIC, 0, 0, 8, CONFIG)
    assert next(reading).next_offset == 4
    brokers.brokers[2].log[2:] = [(6, b"other")] * 6  # elected without records 2 and 3, and further ones came
    brokers.brokers[1].fetch_errors.append(NOT_LEADER)
    brokers.elect(2, 6)
    with pytest.raises(LogTruncationError, match=r"flights-0 was truncated: .* from offset 2 to 3") as caught:
        list(reading)
    assert caught.value.divergent_offset == 2


def test_a_planned_range_is_not_filled_with_other_records() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={5: VALUES})
    client = brokers.client()
    planned = client.listed_offsets({KEY: LATEST})[KEY]
    brokers.brokers[2].log[1:] = [(7, b"other")] * 9
    brokers.elect(2, 7)
    brokers.brokers[1].belief = Belief(2, 7)
    with pytest.raises(LogTruncationError) as caught:
        read(client, 0, planned.offset, planned.leader_epoch)
    assert caught.value.divergent_offset == 1
    assert read(client, 0, 2) == [b"0", *[b"other"] * 9], "without a plan nothing is known of them"


def test_a_batch_of_a_later_epoch_in_a_planned_range_is_noticed_where_the_epochs_have_the_length_of_the_plan() -> None:
    """A leader whose log of the planned epoch is longer, of records that nobody had acknowledged."""
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={4: VALUES[:3], 5: VALUES[3:]})
    client = brokers.client()
    planned = client.listed_offsets({KEY: LATEST})[KEY]
    brokers.brokers[2].log[2:] = [(7, b"other"), (7, b"other")]
    brokers.elect(2, 7)
    brokers.brokers[2].epoch_end = lambda epoch: (epoch, 4)  # type: ignore[method-assign]
    with pytest.raises(LogTruncationError) as caught:
        read(client, 0, planned.offset, planned.leader_epoch)
    assert caught.value.divergent_offset == 2


def test_a_clean_election_after_planning_loses_nothing() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={4: VALUES})
    client = brokers.client()
    planned = client.listed_offsets({KEY: LATEST})[KEY]
    brokers.elect(2, 7)
    brokers.brokers[2].log.append((7, b"4"))
    assert read(client, 0, planned.offset, planned.leader_epoch) == [*VALUES, b"4"]


def test_in_the_planned_epoch_no_request_validates_the_plan() -> None:
    brokers = ScriptedBrokers(1, leader=1, epoch=5, values={5: VALUES})
    assert read(brokers.client(), 0, 4, planned_epoch=5) == VALUES
    assert set(brokers.brokers[1].api_keys) == {ApiKey.METADATA, ApiKey.FETCH}


def test_a_topic_that_one_broker_does_not_know_yet_is_not_gone() -> None:
    brokers = ScriptedBrokers(3, leader=1, epoch=0, values={0: VALUES})
    client = brokers.client()
    assert client.partitions(TOPIC) == [0]
    brokers.brokers[1].belief.topic_id = brokers.brokers[2].belief.topic_id = None
    client.forget_leader(TOPIC)
    assert client.leader(*KEY) == 1
    brokers.brokers[3].belief.topic_id = None
    with pytest.raises(UnknownTopicError):
        client.partitions(TOPIC)


def test_a_topic_made_anew_begins_with_its_own_epochs_and_the_former_one_does_not_return() -> None:
    """KAFKA-12257, the consumer's part: metadata of a topic made anew were ignored, as its epochs are lower."""
    brokers = ScriptedBrokers(2, leader=1, epoch=9, values={9: VALUES})
    client = brokers.client()
    assert client.partitions(TOPIC) == [0]
    former = client.topic_id(TOPIC)
    anew = uuid.UUID(int=8)
    brokers.brokers[2].belief = Belief(2, 0, anew)
    client.forget_leader(TOPIC)
    assert (client.leader(*KEY), client.leader_epoch(*KEY), client.topic_id(TOPIC)) == (2, 0, anew)
    for _ in range(2):  # broker 1 still has the topic that was deleted
        client.forget_leader(TOPIC)
        assert (client.leader(*KEY), client.topic_id(TOPIC)) == (2, anew)
    assert former != anew


def test_a_client_of_a_rack_reads_from_the_replica_that_the_leader_names() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={5: VALUES})
    brokers.brokers[1].preferred = 2
    client = brokers.client(rack="b")
    assert read(client, 0, 4) == VALUES
    assert (brokers.brokers[1].rack_seen, brokers.brokers[2].rack_seen) == (["b"], ["b"])
    assert read(client, 0, 4) == VALUES
    assert brokers.brokers[1].rack_seen == ["b"], "the next range is read there at once"


@pytest.mark.parametrize("code", [OUT_OF_RANGE, NOT_LEADER])
def test_a_replica_that_refuses_sends_the_reader_back_to_the_leader(code: int) -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={5: VALUES})
    brokers.brokers[1].preferred = 2
    brokers.brokers[2].fetch_errors.append(code)
    assert read(brokers.client(rack="b"), 0, 4) == VALUES
    assert brokers.brokers[1].rack_seen == ["b", ""], "the leader serves the next fetch itself"


def test_a_replica_that_dies_sends_the_reader_back_to_the_leader() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={5: VALUES})
    brokers.brokers[1].preferred = 2
    client = brokers.client(rack="b")
    assert read(client, 0, 4) == VALUES
    brokers.brokers[2].is_dead = True
    brokers.brokers[1].preferred = -1
    assert read(client, 0, 4) == VALUES


def test_an_offset_that_the_leader_lacks_is_out_of_range() -> None:
    brokers = ScriptedBrokers(2, leader=1, epoch=5, values={5: VALUES})
    with pytest.raises(OffsetOutOfRangeError):
        read(brokers.client(), 9, 12)


def test_a_topic_that_was_never_seen_is_missing_when_as_many_answers_as_brokers_do_not_know_it() -> None:
    """Right after its creation, a broker that lags behind does not know it yet."""
    brokers = [SimpleNamespace(node_id=each, host="127.0.0.1", port=9092 + each) for each in (1, 2)]
    unknown = SimpleNamespace(error_code=UNKNOWN_TOPIC_OR_PARTITION, name="new", partitions=(), is_internal=False)
    response = SimpleNamespace(brokers=brokers, cluster_id="c", topics=[unknown])
    metadata = ClientMetadata()
    assert metadata.update(response, is_complete=False), "another broker is asked next"
    assert not metadata.is_gone("new")
    metadata.update(response, is_complete=False)
    assert metadata.is_gone("new")
