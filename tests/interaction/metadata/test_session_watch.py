"""A broker on its ZooKeeper: what it leads, and which requests wait, as its session ends or may have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater.logtier.metadata.image import MetadataDelta
from headwater.logtier.metadata.store import SessionState
from tests.control_plane import ControlPlane, run
from tests.interaction.metadata.watched_node import Watched
from tests.simulation.metadata_node import SESSION_S


def watching(scenario: Callable[[ControlPlane, Watched], Awaitable[None]]) -> None:
    async def main(plane: ControlPlane) -> None:
        # Not the controller: others note that it is gone.
        watched = Watched((await plane.others())[0].node)

        await watched.start()
        await scenario(plane, watched)
        await watched.stop()

    run(main)


def test_a_session_that_is_over_ends_all_leaderships_until_the_image_has_the_next_registration() -> None:
    async def scenario(plane: ControlPlane, watched: Watched) -> None:
        epoch = watched.broker_epoch
        plane.model.expire(watched.node.store.session_id)
        await plane.until(lambda: watched.did == ["fence"])
        assert watched.node.store.state is SessionState.LOST, "at once, not when the image has it"
        await plane.until(lambda: "unfence" in watched.did)
        assert watched.did == ["fence", "unfence"]
        assert watched.broker_epoch > epoch

    watching(scenario)


def test_a_lost_connection_alone_ends_no_leadership() -> None:
    async def scenario(plane: ControlPlane, watched: Watched) -> None:
        states: list[SessionState] = []
        watched.node.store.on_session(states.append)
        plane.model.lose_connection(watched.node.name)
        await plane.until(lambda: states == [SessionState.SUSPENDED, SessionState.CONNECTED])
        assert not watched.watch.is_in_doubt()
        assert watched.did == ["heard"]

    watching(scenario)


def test_the_registration_of_a_session_that_ended_meanwhile_ends_no_fence() -> None:
    """Its answer arrives, then the end of that session, and the change list tells of the registration only later."""

    async def scenario(plane: ControlPlane, watched: Watched) -> None:
        ended: list[int] = []

        def end_once(delta: MetadataDelta) -> None:
            known = delta.new.brokers.get(watched.node.broker_id)
            session_id = watched.node.store.session_id
            if "fence" in watched.did and not ended and known is not None and session_id in plane.model.session_ids():
                ended.append(session_id)
                plane.model.expire(session_id)

        for node in plane.nodes.values():
            if node is not watched.node:
                node.cache.subscribe(end_once)
        plane.model.expire(watched.node.store.session_id)
        await plane.until(lambda: bool(ended))
        await plane.until(lambda: watched.session_id not in (0, *ended) and watched.did[-1] == "unfence")
        await plane.settled()
        assert watched.did == ["fence", "unfence"] * (len(watched.did) // 2)

    watching(scenario)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_broker_that_was_frozen_while_it_registered_anew_leads_once_that_session_is_confirmed(is_over: bool) -> None:
    """Frozen after the controller has its registration; the change list tells of it before the store of its session."""

    async def scenario(plane: ControlPlane, watched: Watched) -> None:
        node = watched.node
        frozen: list[int] = []
        in_doubt: list[bool] = []
        led_in: list[int] = []
        unfence = watched.unfence

        def freeze_once(delta: MetadataDelta) -> None:
            known = delta.new.brokers.get(node.broker_id)
            session_id = node.store.session_id
            if "fence" in watched.did and not frozen and known is not None and session_id in plane.model.session_ids():
                frozen.append(session_id)
                node.process.is_frozen = True

        def unfenced() -> None:
            in_doubt.append(watched.watch.is_in_doubt())
            led_in.append(node.store.session_id)
            unfence()

        watched.unfence = unfenced  # type: ignore[method-assign]
        for other in plane.nodes.values():
            if other is not node:
                other.cache.subscribe(freeze_once)
        plane.model.expire(node.store.session_id)
        await plane.until(lambda: bool(frozen))
        await asyncio.sleep(0.6 * SESSION_S)
        if is_over:
            plane.model.expire(frozen[0])
        watched.thaw()
        await plane.until(lambda: watched.did[-1] == "unfence" and not watched.watch.is_in_doubt())
        if is_over:
            assert led_in[-1] != frozen[0]
            assert dict(zip(led_in, in_doubt, strict=True)).get(frozen[0], True), "it led in a session that was over"
        else:
            assert led_in == frozen
            assert in_doubt == [True], "requests wait from the turn on in which it leads again"

    watching(scenario)


@pytest.mark.parametrize("pause_s", [0.6 * SESSION_S, 2 * SESSION_S])
def test_after_a_pause_requests_wait_until_the_session_is_known_to_go_on_or_to_be_over(pause_s: float) -> None:
    async def scenario(plane: ControlPlane, watched: Watched) -> None:
        session_id = watched.node.store.session_id
        watched.node.process.is_frozen = True
        await asyncio.sleep(pause_s)
        # The first that the process does is to look at a request.
        assert watched.watch.is_in_doubt()
        waiting = asyncio.ensure_future(watched.watch.decided())
        watched.thaw()
        await asyncio.wait_for(waiting, SESSION_S)
        assert not watched.watch.is_in_doubt()
        is_over = session_id not in plane.model.session_ids()
        assert is_over == (pause_s > SESSION_S)
        assert ("fence" in watched.did) == is_over

    watching(scenario)


def test_a_store_that_answers_nothing_holds_requests_for_a_session_time() -> None:
    async def scenario(plane: ControlPlane, watched: Watched) -> None:
        plane.model.cut(watched.node.name)
        watched.node.process.is_frozen = True
        await asyncio.sleep(SESSION_S / 2)
        watched.thaw()
        begun_s = asyncio.get_running_loop().time()
        assert watched.watch.is_in_doubt()
        await watched.watch.decided()
        assert asyncio.get_running_loop().time() - begun_s == pytest.approx(SESSION_S, abs=1)
        plane.model.heal(watched.node.name)

    watching(scenario)
