"""The watch of a broker's session begins and ends in any state, and holds no request after its end."""

from __future__ import annotations

import asyncio

from headwater.logtier.metadata.store import SessionState
from tests.control_plane import ControlPlane, run
from tests.interaction.metadata.watched_node import Watched
from tests.simulation.metadata_node import SESSION_S
from tests.virtual_time import LoopClock


class MovableClock(LoopClock):
    """The loop's time, and pauses of this process."""

    paused_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.paused_ms


def test_a_broker_whose_session_was_replaced_during_its_start_leads_once_it_is_registered_anew() -> None:
    """Coordinators may load for longer than a session: the next one has begun when the watch does."""

    async def scenario(plane: ControlPlane) -> None:
        node = (await plane.others())[0].node
        watched = Watched(node)
        registered_in = node.registrar.session_id

        at_start: list[list[str]] = []

        def begin(state: SessionState) -> None:
            if state is SessionState.CONNECTED and not at_start:
                assert node.registrar.session_id == registered_in != node.store.session_id
                watched.watch.start()
                at_start.append(list(watched.did))

        node.store.on_session(begin)
        plane.model.expire(registered_in)
        await plane.until(lambda: bool(at_start))
        assert at_start == [["fence"]]
        await plane.until(lambda: watched.did == ["fence", "unfence"])
        await watched.stop()

    run(scenario)


def test_no_request_waits_after_the_watch_has_ended() -> None:
    """A broker that stops still answers, and its process may be paused then, too."""

    async def scenario(plane: ControlPlane) -> None:
        node = (await plane.others())[0].node
        clock = MovableClock()
        watched = Watched(node, clock)
        watch = watched.watch

        async def stop_in_doubt() -> None:
            watch.start()
            plane.model.cut(node.name)
            clock.paused_ms += int(SESSION_S * 1000)
            assert watch.is_in_doubt()
            waiting = asyncio.ensure_future(watch.decided())
            await asyncio.sleep(0)
            await watch.aclose()
            await asyncio.wait_for(waiting, SESSION_S)
            assert watched.did == ["fence"], "what waited is answered by a broker that leads nothing"
            assert not watch.is_in_doubt(), "nobody would decide"
            clock.paused_ms += int(SESSION_S * 1000)
            assert not watch.is_in_doubt()
            await asyncio.wait_for(watch.decided(), SESSION_S)

        await node.spawn(stop_in_doubt())
        plane.model.heal(node.name)

    run(scenario)


def test_a_registration_that_becomes_known_after_the_end_of_the_watch_changes_nothing() -> None:
    async def scenario(plane: ControlPlane) -> None:
        node = (await plane.others())[0].node
        watched = Watched(node)

        await watched.start()
        first = node.registrar.session_id
        plane.model.expire(first)
        await plane.until(lambda: watched.did == ["fence"])
        await watched.stop()
        await plane.until(lambda: node.registrar.session_id not in (0, first))
        await plane.until(
            lambda: (
                (known := node.image.brokers.get(node.broker_id)) is not None and known.epoch == node.registrar.epoch
            )
        )
        assert watched.did == ["fence"], "the coordinators have stopped"

    run(scenario)
