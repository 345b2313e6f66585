"""The watch of a broker's session begins and ends in any state, and holds no request after its end."""

from __future__ import annotations

import asyncio

from headwater.logtier.cluster.session_watch import SessionWatch
from headwater.logtier.metadata.store import SessionState
from tests.control_plane import ControlPlane, run
from tests.simulation.metadata_node import SESSION_S, MetadataNode
from tests.virtual_time import LoopClock


class RecordedLeaderships:
    def __init__(self) -> None:
        self.did: list[str] = []

    def fence(self) -> None:
        self.did.append("fence")

    def unfence(self) -> None:
        self.did.append("unfence")

    def store_heard(self) -> None:
        self.did.append("heard")


class MovableClock(LoopClock):
    """The loop's time, and pauses of this process."""

    paused_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.paused_ms


class KnownRegistration:
    def __init__(self, node: MetadataNode) -> None:
        self._node = node

    @property
    def broker_epoch(self) -> int:
        return self._node.registrar.epoch

    @property
    def session_id(self) -> int:
        return self._node.registrar.session_id


def watch_of(node: MetadataNode, leaderships: RecordedLeaderships, clock: LoopClock) -> SessionWatch:
    watch = SessionWatch(
        node.store, node.cache, node.broker_id, KnownRegistration(node), leaderships, clock, int(SESSION_S * 1000)
    )
    node.registrar.on_registered = watch.registered
    return watch


def test_a_broker_whose_session_was_replaced_during_its_start_leads_once_it_is_registered_anew() -> None:
    """Coordinators may load for longer than a session: the next one has begun when the watch does."""

    async def scenario(plane: ControlPlane) -> None:
        node = (await plane.others())[0].node
        leaderships = RecordedLeaderships()
        watch = watch_of(node, leaderships, LoopClock())
        registered_in = node.registrar.session_id

        at_start: list[list[str]] = []

        def begin(state: SessionState) -> None:
            if state is SessionState.CONNECTED and not at_start:
                assert node.registrar.session_id == registered_in != node.store.session_id
                watch.start()
                at_start.append(list(leaderships.did))

        node.store.on_session(begin)
        plane.model.expire(registered_in)
        await plane.until(lambda: bool(at_start))
        assert at_start == [["fence"]]
        await plane.until(lambda: leaderships.did == ["fence", "unfence"])
        await node.spawn(watch.aclose())

    run(scenario)


def test_no_request_waits_after_the_watch_has_ended() -> None:
    """A broker that stops still answers, and its process may be paused then, too."""

    async def scenario(plane: ControlPlane) -> None:
        node = (await plane.others())[0].node
        clock = MovableClock()
        watch = watch_of(node, RecordedLeaderships(), clock)

        async def stop_in_doubt() -> None:
            watch.start()
            plane.model.cut(node.name)
            clock.paused_ms += int(SESSION_S * 1000)
            assert watch.is_in_doubt()
            waiting = asyncio.ensure_future(watch.decided())
            await asyncio.sleep(0)
            await watch.aclose()
            await asyncio.wait_for(waiting, SESSION_S)
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
        leaderships = RecordedLeaderships()
        watch = watch_of(node, leaderships, LoopClock())

        async def begin() -> None:
            watch.start()

        await node.spawn(begin())
        first = node.registrar.session_id
        plane.model.expire(first)
        await plane.until(lambda: leaderships.did == ["fence"])
        await node.spawn(watch.aclose())
        await plane.until(lambda: node.registrar.session_id not in (0, first))
        await plane.until(
            lambda: (
                (known := node.image.brokers.get(node.broker_id)) is not None and known.epoch == node.registrar.epoch
            )
        )
        assert leaderships.did == ["fence"], "the coordinators have stopped"

    run(scenario)
