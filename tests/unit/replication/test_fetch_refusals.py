"""The log lines of fetches that leaders refuse, each of which is repeated every second."""

from __future__ import annotations

import logging

import pytest

from headwater.logtier.peers.backoff import REPEAT_MS
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.protocol.uuids import from_text
from headwater.logtier.replication.fetching.fetch_refusals import FetchRefusals
from headwater.logtier.replication.fetching.followed_partition import FollowedPartition
from tests.manual_clock import ManualClock

TOPIC_ID = from_text("AAAAAAAAAAAAAAAAAAAAAQ")


def followed(partition: int, leader_id: int) -> FollowedPartition:
    return FollowedPartition(TopicPartition("t", partition), TOPIC_ID, leader_id, 1, True)


def test_a_leader_that_does_not_authorize_the_broker_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    refusals = FetchRefusals(clock)
    for _ in range(3):
        for leader_id in (2, 3):
            for partition in range(5):
                refusals.refused(followed(partition, leader_id), ErrorCode.topic_authorization_failed)
        clock.ms += REPEAT_MS // 4
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(";")[0] for line in lines] == [
        "broker 2 refuses fetches of this broker: TOPIC_AUTHORIZATION_FAILED",
        "broker 3 refuses fetches of this broker: TOPIC_AUTHORIZATION_FAILED",
    ]
    clock.ms += REPEAT_MS
    refusals.refused(followed(1, 2), ErrorCode.topic_authorization_failed)
    assert len(caplog.records) == 3
    for _ in range(2):
        refusals.fetched(2)
    assert [record.getMessage() for record in caplog.records[3:]] == ["broker 2 serves fetches of this broker"]


def test_the_error_of_a_partition_names_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    refusals = FetchRefusals(ManualClock())
    refusals.refused(followed(1, 2), ErrorCode.kafka_storage_error)
    refusals.refused(followed(1, 2), ErrorCode.not_leader_or_follower)
    assert [record.getMessage() for record in caplog.records] == ["t-1: broker 2 answered KAFKA_STORAGE_ERROR"]
