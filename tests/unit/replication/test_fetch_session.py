"""The cache of fetch sessions: who gets a slot, who loses one, how epochs run on."""

from __future__ import annotations

import random
from dataclasses import dataclass

from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.replication.fetch_session import (
    EVICTION_MS,
    SESSION_PARTITIONS_MAX,
    FetchSession,
    FetchSessionCache,
)

Cache = FetchSessionCache[str]


@dataclass
class Answer:
    high_watermark: int = 0
    log_start_offset: int = 0
    size: int = 0
    error_code: ErrorCode = ErrorCode.none


def cache_of(slots: int) -> Cache:
    return FetchSessionCache(slots, random.Random(3))


def begin(cache: Cache, size: int, now_ms: int, *, replica: bool = False) -> FetchSession[str] | None:
    wanted = [(("flights", index), f"flights-{index}") for index in range(size)]
    return cache.create(wanted, by_topic_id=False, is_privileged=replica, now_ms=now_ms)


def begun(cache: Cache, size: int, now_ms: int, *, replica: bool = False) -> FetchSession[str]:
    session = begin(cache, size, now_ms, replica=replica)
    assert session is not None
    return session


def test_a_young_session_keeps_its_slot() -> None:
    cache = cache_of(1)
    first = begun(cache, 1, 0)
    assert begin(cache, 100, EVICTION_MS) is None
    assert cache.get(first.id) is first


def test_a_session_that_was_not_used_makes_room() -> None:
    cache = cache_of(2)
    idle, used = begun(cache, 9, 0), begun(cache, 1, 0)
    cache.touch(used, EVICTION_MS)
    new = begun(cache, 1, EVICTION_MS + 1)
    assert cache.get(idle.id) is None
    assert {used.id, new.id} == set(cache._sessions)


def test_an_old_session_makes_room_for_a_larger_one_only() -> None:
    cache = cache_of(1)
    old = begun(cache, 5, 0)
    now_ms = EVICTION_MS + 1
    cache.touch(old, now_ms)
    assert begin(cache, 5, now_ms) is None
    assert begin(cache, 6, now_ms) is not None
    assert cache.get(old.id) is None


def test_of_old_sessions_the_smallest_goes_by_its_present_size() -> None:
    cache = cache_of(2)
    shrunk, other = begun(cache, 9, 0), begun(cache, 5, 0)
    now_ms = EVICTION_MS + 1
    for session in (shrunk, other):
        cache.touch(session, now_ms)
    shrunk.update((), [("flights", index) for index in range(6)])
    cache.touch(shrunk, now_ms)
    begun(cache, 4, now_ms)
    assert cache.get(shrunk.id) is None
    assert cache.get(other.id) is other


def test_a_replica_takes_a_consumers_slot_at_any_time_and_never_a_replicas_young_one() -> None:
    cache = cache_of(2)
    consumer, replica = begun(cache, 100, 0), begun(cache, 1, 0, replica=True)
    begun(cache, 1, 1, replica=True)
    assert cache.get(consumer.id) is None
    assert begin(cache, 100, 1, replica=True) is None
    assert cache.get(replica.id) is replica


def test_an_old_replicas_session_is_worth_more_than_a_consumers() -> None:
    cache = cache_of(1)
    replica = begun(cache, 1, 0, replica=True)
    cache.touch(replica, EVICTION_MS + 1)
    assert begin(cache, 100, EVICTION_MS + 1) is None
    assert begin(cache, 100, EVICTION_MS + 1, replica=True) is not None


def test_without_slots_and_beyond_the_limit_of_partitions_there_is_no_session() -> None:
    assert begin(cache_of(0), 1, 0) is None
    assert begin(cache_of(1), SESSION_PARTITIONS_MAX + 1, 0) is None


def test_removing_a_session_twice_is_fine() -> None:
    cache = cache_of(1)
    session = begun(cache, 1, 0)
    cache.touch(session, EVICTION_MS + 1)
    cache.remove(session.id)
    cache.remove(session.id)
    assert (len(cache), cache.partition_count) == (0, 0)
    assert cache.find(session.id, 1, by_topic_id=False) is ErrorCode.fetch_session_id_not_found


def test_epochs_wrap_to_one() -> None:
    session = begun(cache_of(1), 1, 0)
    session.epoch = 2**31 - 1
    assert session.advance() == 1


def test_partitions_with_records_are_read_last_next_time_and_others_keep_their_order() -> None:
    session = begun(cache_of(1), 4, 0)
    session_answers = [Answer(), Answer(size=9), Answer(), Answer(size=9)]
    assert told(session, session_answers) == [0, 1, 2, 3]
    assert session.wanted() == ["flights-0", "flights-2", "flights-1", "flights-3"]


def test_where_all_have_records_the_order_stays() -> None:
    session = begun(cache_of(1), 2, 0)
    assert told(session, [Answer(size=9), Answer(size=9)]) == [0, 1]
    assert session.wanted() == ["flights-0", "flights-1"]


def test_an_answer_without_news_is_not_told() -> None:
    session = begun(cache_of(1), 1, 0)
    assert told(session, [Answer(5, 2)]) == [0]
    assert told(session, [Answer(5, 2)]) == []
    assert told(session, [Answer(6, 2)]) == [0]
    assert told(session, [Answer(6, 3)]) == [0]
    assert told(session, [Answer(-1, -1, error_code=ErrorCode.kafka_storage_error)]) == [0]
    assert told(session, [Answer(-1, -1, error_code=ErrorCode.kafka_storage_error)]) == [0]
    assert told(session, [Answer(6, 3)]) == [0]
    assert told(session, [Answer(6, 3)]) == []


def test_an_answer_without_a_watermark_is_told_every_time() -> None:
    """An error, or a divergence: a follower that truncated once may diverge again."""
    session = begun(cache_of(1), 1, 0)
    diverging = Answer(high_watermark=-1, log_start_offset=-1)
    assert [told(session, [diverging]) for _ in range(2)] == [[0], [0]]


def told(session: FetchSession[str], answers: list[Answer], *standing: str) -> list[int]:
    return session.news(list(session.due), answers, lambda _, wanted, __: wanted in standing)


def test_a_partition_without_news_is_not_read_again_before_it_moves() -> None:
    session = begun(cache_of(1), 3, 0)
    assert told(session, [Answer(), Answer(size=9), Answer()], "flights-0", "flights-1") == [0, 1, 2]
    assert session.wanted() == ["flights-2", "flights-1"], "one with records is read again, wherever its reader goes on"
    session.move(("flights", 0))
    session.move(("other", 0))
    assert session.wanted() == ["flights-2", "flights-1", "flights-0"]


def test_a_partition_of_which_the_request_speaks_is_read() -> None:
    session = begun(cache_of(1), 3, 0)
    assert told(session, [Answer()] * 3, "flights-0", "flights-1", "flights-2") == [0, 1, 2]
    assert session.wanted() == []
    session.update([(("flights", 1), "flights-1 from 7"), (("flights", 3), "flights-3")], [("flights", 2)])
    assert session.wanted() == ["flights-1 from 7", "flights-3"]
    session.read_all(500)
    assert session.wanted() == ["flights-1 from 7", "flights-3", "flights-0"]
    assert session.read_ms == 500
    session.update([], [("flights", 3)])
    assert session.wanted() == ["flights-1 from 7", "flights-0"]
