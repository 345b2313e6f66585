from collections.abc import Callable, Hashable

from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.network.request_memory import CONNECTION_SHARE, OWNER_SHARE, Holder, RequestMemory


class Requests:
    """Requests by name, and which of them were granted memory after they had waited."""

    def __init__(self, bytes_max: int) -> None:
        self.memory = RequestMemory(bytes_max)
        self.granted: list[str] = []

    def holder(self, name: str, owner: Hashable = "owner") -> Holder:
        return Holder(owner, lambda: self.granted.append(name))


def test_what_fits_is_granted_piece_by_piece() -> None:
    requests = Requests(400)
    holder = requests.holder("a")
    assert requests.memory.grant(holder, 40)
    assert requests.memory.grant(holder, 100)
    assert requests.memory.used_bytes == holder.held_bytes == 100
    requests.memory.release(holder)
    assert requests.memory.used_bytes == holder.held_bytes == 0


def test_one_owner_leaves_others_their_part_whatever_it_sends() -> None:
    requests = Requests(400)
    assert all(requests.memory.grant(requests.holder(str(n)), 100) for n in range(2))
    assert requests.memory.grant(requests.holder("the turn"), 100)
    assert not requests.memory.grant(requests.holder("c"), 10)
    assert requests.memory.grant(requests.holder("other", "other"), 100)


def test_a_request_above_the_share_of_a_connection_waits_only_for_the_turn() -> None:
    requests = Requests(400)
    large, larger = requests.holder("large"), requests.holder("larger", "other")
    assert requests.memory.grant(large, 5000), "alone, it has the turn"
    assert not requests.memory.grant(larger, 5000)
    assert requests.memory.is_waited_for
    requests.memory.release(large)
    assert requests.granted == ["larger"]
    assert not requests.memory.is_waited_for


def test_owners_take_turns() -> None:
    requests = Requests(400)
    holders = {name: requests.holder(name, name[0]) for name in ("a1", "a2", "a3", "b1")}
    assert requests.memory.grant(holders["a1"], 500)
    for name in ("a2", "a3", "b1"):
        assert not requests.memory.grant(holders[name], 500)
    requests.memory.release(holders["a1"])
    assert requests.granted == ["a2"]
    requests.memory.release(holders["a2"])
    assert requests.granted == ["a2", "b1"]


def test_a_connection_that_is_gone_waits_no_more_and_blocks_nobody() -> None:
    requests = Requests(400)
    first, gone, following = (requests.holder(name) for name in ("first", "gone", "following"))
    assert requests.memory.grant(first, 500)
    assert not requests.memory.grant(gone, 500)
    assert not requests.memory.grant(following, 500)
    requests.memory.release(gone)
    requests.memory.release(gone)
    requests.memory.release(first)
    assert requests.granted == ["following"]
    assert requests.memory.used_bytes == 500


def test_a_request_that_may_not_have_the_turn_gets_what_fits_and_waits_for_nothing() -> None:
    requests = Requests(400)
    behind, next_one = requests.holder("behind"), requests.holder("next", "other")
    assert requests.memory.grant_if_it_fits(behind, 100)
    assert not requests.memory.grant_if_it_fits(behind, 101)
    assert not requests.memory.is_waited_for
    assert requests.memory.grant(next_one, 5000), "the turn is free"
    requests.memory.release(next_one)
    assert requests.granted == []
    assert requests.memory.used_bytes == behind.held_bytes == 100
    assert requests.memory.grant(behind, 5000)


def test_no_limit_grants_everything() -> None:
    requests = Requests(-1)
    assert all(requests.memory.grant(requests.holder(str(n)), 1 << 40) for n in range(3))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 300), st.booleans(), st.booleans()), max_size=60))
def test_the_shares_hold_and_every_request_comes_to_its_end(steps: list[tuple[int, int, bool, bool]]) -> None:
    requests = Requests(400)
    memory = requests.memory
    holders = [requests.holder(str(n), n % 3) for n in range(10)]
    release: Callable[[Holder], None] = memory.release
    for index, more, is_whole, is_next in steps:
        holder = holders[index]
        if is_whole:
            release(holder)
        elif not holder.wanted_bytes:
            (memory.grant if is_next else memory.grant_if_it_fits)(holder, holder.held_bytes + more)
        without_turn = [each for each in holders if each is not memory._turn]
        assert all(each.held_bytes <= 400 // CONNECTION_SHARE for each in without_turn)
        for owner in range(3):
            assert sum(each.held_bytes for each in without_turn if each.owner == owner) <= 400 // OWNER_SHARE
        assert memory.used_bytes == sum(each.held_bytes for each in holders)
        assert memory.is_waited_for == any(each.wanted_bytes for each in holders)
        assert not memory.is_waited_for or memory._turn is not None
    for _ in range(len(holders)):
        going_on = [each for each in holders if each.held_bytes and not each.wanted_bytes]
        for holder in going_on:
            release(holder)
    assert memory.used_bytes == 0
    assert not memory.is_waited_for
