"""What a follower asks next: pauses, and a session that holds what the leader's holds."""

from __future__ import annotations

import random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.logtier.peers.replica_fetch import ReplicaFetchPartition
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.request_counts import WHOLE_ELEMENTS_MAX
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.fetch_session import FetchSession, FetchSessionCache, PartitionKey
from headwater.logtier.replication.fetching.fetch_plan import REFRESH_MS, FetchPlan, PlannedFetch
from headwater.logtier.replication.fetching.followed_partition import FollowedPartition
from tests.example_counts import examples

BACKOFF_MS = 1_000
IDS = {"a": UUID(int=1), "b": UUID(int=2)}
KEYS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]


def followed(key: TopicPartition = KEYS[0], epoch: int = 0) -> FollowedPartition:
    return FollowedPartition(key, IDS[key.topic], 1, epoch, True)


class Logs:
    """Positions of logs, None for one that cannot be fetched."""

    def __init__(self) -> None:
        self.ends: dict[TopicPartition, int | None] = dict.fromkeys(KEYS, 0)
        self.looked_at = 0

    def position(self, each: FollowedPartition) -> ReplicaFetchPartition | None:
        self.looked_at += 1
        end = self.ends[each.topic_partition]
        if end is None:
            return None
        return ReplicaFetchPartition(each.topic_partition.partition, each.leader_epoch, end, -1, 0, 1)


def plan_of(*keys: TopicPartition) -> tuple[FetchPlan, Logs, list[FollowedPartition]]:
    plan, logs = FetchPlan(lambda: BACKOFF_MS), Logs()
    assigned = [followed(key) for key in keys]
    for each in assigned:
        plan.follow(each)
    return plan, logs, assigned


def planned(plan: FetchPlan, logs: Logs, now_ms: int) -> PlannedFetch:
    found = plan.next(now_ms, logs.position)
    assert found is not None
    return found


def indexes(fetch: PlannedFetch) -> list[tuple[UUID, int]]:
    return [(topic_id, each.partition) for topic_id, positions in fetch.positions.items() for each in positions]


@pytest.mark.parametrize("session_id", [77, 0])
def test_a_leader_of_very_many_partitions_is_asked_within_its_limit_of_elements(session_id: int) -> None:
    """A request above the limit ends the connection, and the next one would be the same. 0: there is no session."""
    topics = [UUID(int=1 + number) for number in range(WHOLE_ELEMENTS_MAX)]
    plan, logs = FetchPlan(lambda: BACKOFF_MS), Logs()
    logs.ends = {TopicPartition(str(topic_id), 0): 0 for topic_id in topics}
    for topic_id, key in zip(topics, logs.ends, strict=True):
        plan.follow(FollowedPartition(key, topic_id, 1, 0, True))
    asked: set[UUID] = set()
    for turn in range(4):
        fetch = planned(plan, logs, turn)
        assert len(fetch.positions) + len(indexes(fetch)) + 2 * len(fetch.forgotten) <= WHOLE_ELEMENTS_MAX
        asked.update(fetch.positions)
        plan.answered(session_id)
    assert asked == set(topics)
    for key in list(logs.ends):
        plan.unfollow(key)
    last = TopicPartition("a", 0)
    logs.ends[last] = 0
    plan.follow(followed(last))
    fetch = planned(plan, logs, 5)
    assert indexes(fetch) == [(IDS["a"], 0)]
    assert 2 * len(fetch.forgotten) <= WHOLE_ELEMENTS_MAX


def test_a_session_repeats_only_what_has_moved() -> None:
    plan, logs, assigned = plan_of(*KEYS)
    first = planned(plan, logs, 0)
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert len(indexes(first)) == 3
    plan.answered(77)
    logs.ends[KEYS[1]] = 5
    plan.touch(assigned[1])
    second = planned(plan, logs, 1)
    assert (second.session_id, second.session_epoch) == (77, 1)
    assert indexes(second) == [(IDS["a"], 1)]
    plan.answered(77)
    logs.looked_at = 0
    third = planned(plan, logs, 2)
    assert (third.session_epoch, third.positions, third.forgotten) == (2, {}, {})
    assert logs.looked_at == 0, "positions that did not move are not read"


def test_what_moves_without_an_answer_is_told_within_the_interval() -> None:
    plan, logs, _ = plan_of(KEYS[0])
    planned(plan, logs, 0)
    plan.answered(77)
    logs.ends[KEYS[0]] = 9
    assert planned(plan, logs, REFRESH_MS - 1).positions == {}
    plan.answered(77)
    assert len(indexes(planned(plan, logs, REFRESH_MS))) == 1


def test_a_lost_answer_begins_another_session_in_place_of_the_old_one() -> None:
    plan, logs, _ = plan_of(*KEYS)
    planned(plan, logs, 0)
    plan.answered(77)
    planned(plan, logs, 1)
    plan.failed(1)
    assert plan.next(BACKOFF_MS, logs.position) is None
    assert plan.wait_ms(1) == BACKOFF_MS
    again = planned(plan, logs, BACKOFF_MS + 1)
    assert (again.session_id, again.session_epoch) == (77, 0), "the leader ends the session of that id"
    assert len(indexes(again)) == 3


def test_a_leader_without_sessions_gets_full_requests() -> None:
    plan, logs, _ = plan_of(*KEYS)
    for now_ms in range(3):
        fetch = planned(plan, logs, now_ms)
        assert (fetch.session_id, fetch.session_epoch, len(indexes(fetch))) == (0, 0, 3)
        plan.answered(0)


def test_a_failing_partition_pauses_alone() -> None:
    plan, logs, assigned = plan_of(*KEYS)
    planned(plan, logs, 0)
    plan.answered(77)
    plan.back_off(assigned[0], 10)
    fetch = planned(plan, logs, 10)
    assert (fetch.positions, fetch.forgotten) == ({}, {IDS["a"]: [0]})
    plan.answered(77)
    assert plan.wait_ms(10) == BACKOFF_MS
    assert planned(plan, logs, 9 + BACKOFF_MS).positions == {}
    plan.answered(77)
    assert indexes(planned(plan, logs, 10 + BACKOFF_MS)) == [(IDS["a"], 0)]


def test_a_held_partition_waits_for_its_release() -> None:
    plan, logs, assigned = plan_of(KEYS[0])
    planned(plan, logs, 0)
    plan.answered(77)
    plan.hold(assigned[0])
    assert plan.next(10 * BACKOFF_MS, logs.position) is None
    assert plan.wait_ms(0) is None
    plan.release(KEYS[0])
    assert len(indexes(planned(plan, logs, 10 * BACKOFF_MS))) == 1


def test_a_log_that_is_not_there_is_looked_for_again() -> None:
    plan, logs, _ = plan_of(KEYS[0])
    logs.ends[KEYS[0]] = None
    assert plan.next(5, logs.position) is None
    assert plan.wait_ms(5) == BACKOFF_MS
    logs.ends[KEYS[0]] = 0
    assert len(indexes(planned(plan, logs, 5 + BACKOFF_MS))) == 1


def test_another_leader_epoch_ends_a_pause_and_the_questions_of_the_old_one() -> None:
    plan, logs, [old] = plan_of(KEYS[0])
    planned(plan, logs, 0)
    assert plan.asked(IDS["a"], 0) is not None
    plan.answered(77)
    plan.back_off(old, 0)
    newer = followed(epoch=1)
    plan.follow(newer)
    assert plan.asked(IDS["a"], 0) is None
    fetch = planned(plan, logs, 1)
    assert [each.leader_epoch for each in fetch.positions[IDS["a"]]] == [1]
    question = plan.asked(IDS["a"], 0)
    assert question is not None
    assert question[0] is newer
    plan.back_off(old, 2)
    plan.hold(old)
    plan.touch(old)
    plan.answered(77)
    assert planned(plan, logs, 2).forgotten == {}


def test_a_partition_that_goes_leaves_the_session() -> None:
    plan, logs, _ = plan_of(*KEYS)
    planned(plan, logs, 0)
    plan.answered(77)
    plan.unfollow(KEYS[2])
    plan.unfollow(KEYS[2])
    assert planned(plan, logs, 1).forgotten == {IDS["b"]: [0]}
    for key in KEYS:
        plan.unfollow(key)
    assert plan.next(2, logs.position) is None
    assert len(plan) == 0


def test_the_return_of_the_leader_ends_every_pause() -> None:
    plan, logs, assigned = plan_of(*KEYS)
    planned(plan, logs, 0)
    plan.answered(77)
    plan.back_off(assigned[0], 0)
    plan.failed(0)
    plan.leader_returned()
    assert len(indexes(planned(plan, logs, 1))) == 3


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["fetch", "fetch", "fetch", "lose", "evict", "move", "back_off", "hold", "release", "follow", "unfollow"]
        ),
        st.integers(0, len(KEYS) - 1),
    ),
    max_size=40,
)


@settings(max_examples=examples(300))
@given(STEPS, st.booleans())
def test_the_leaders_session_holds_what_the_follower_believes(steps: list[tuple[str, int]], has_room: bool) -> None:
    """Whatever happens, an answered request leaves the leader with each fetchable partition at its present position."""
    plan, logs = FetchPlan(lambda: BACKOFF_MS), Logs()
    cache: FetchSessionCache[ReplicaFetchPartition] = FetchSessionCache(int(has_room), random.Random(1))
    assigned: dict[TopicPartition, FollowedPartition] = {}
    out: set[TopicPartition] = set()
    now_ms = 0
    for step, which in [*steps, ("wait", 0), ("fetch", 0), ("fetch", 0)]:
        key = KEYS[which]
        each = assigned.get(key)
        now_ms += 1
        if step == "wait":
            now_ms += BACKOFF_MS
        elif step == "follow":
            each = assigned[key] = followed(key, now_ms)
            plan.follow(each)
            out.discard(key)
        elif step == "unfollow":
            plan.unfollow(key)
            assigned.pop(key, None)
        elif step == "evict":
            for session_id in list(cache._sessions):
                cache.remove(session_id)
        elif step in ("fetch", "lose"):
            fetch = plan.next(now_ms, logs.position)
            if fetch is None:
                continue
            answer = serve(cache, fetch, now_ms)
            if step == "lose":
                plan.failed(now_ms)
                now_ms += BACKOFF_MS
            elif isinstance(answer, ErrorCode):
                plan.restart()
            else:
                session_id, held = answer
                plan.answered(session_id)
                fetchable = {
                    (IDS[each.topic], each.partition): logs.position(assigned[each])
                    for each in assigned
                    if each not in out
                }
                assert {known: held.get(known) for known in fetchable} == fetchable
                assert set(held) == set(plan._told)
                assert all(plan.asked(*known) is not None for known in fetchable)
        elif each is not None:
            if step == "move":
                logs.ends[key] = now_ms
                plan.touch(each)
            elif step == "release":
                plan.release(key)
                out.discard(key)
            else:
                out.add(key)
                if step == "hold":
                    plan.hold(each)
                else:
                    plan.back_off(each, now_ms + 100 * BACKOFF_MS)


Held = dict[PartitionKey, ReplicaFetchPartition]


def serve(
    cache: FetchSessionCache[ReplicaFetchPartition], fetch: PlannedFetch, now_ms: int
) -> tuple[int, Held] | ErrorCode:
    """What the leader does with a request: the session's id, and the positions that it reads."""
    asked = [
        ((topic_id, each.partition), each) for topic_id, positions in fetch.positions.items() for each in positions
    ]
    assert len(dict(asked)) == len(asked)
    if fetch.session_epoch == 0:
        cache.remove(fetch.session_id)
        created = cache.create(asked, by_topic_id=True, is_privileged=True, now_ms=now_ms)
        return (0, dict(asked)) if created is None else (created.id, held_by(created))
    session = cache.find(fetch.session_id, fetch.session_epoch, by_topic_id=True)
    if isinstance(session, ErrorCode):
        return session
    gone = [(topic_id, index) for topic_id, indexes in fetch.forgotten.items() for index in indexes]
    session.update(asked, gone)
    session.advance()
    return session.id, held_by(session)


def held_by(session: FetchSession[ReplicaFetchPartition]) -> Held:
    return {key: each.wanted for key, each in session.partitions.items()}
