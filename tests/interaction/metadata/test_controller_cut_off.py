"""What a controller answers that has lost its connection to the store, or does not know yet that it has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headwater.logtier.controller.commands import NewTopic
from headwater.logtier.metadata.store import Operation
from headwater.logtier.protocol.errors import ErrorCode
from tests.control_plane import ControlPlane, run
from tests.simulation.metadata_node import SESSION_S, MetadataNode


async def refusal(node: MetadataNode, topic: NewTopic, *, validate_only: bool = False) -> ErrorCode:
    """The error of a command of this broker, as controller."""
    [result] = await node.spawn(node.controller.create_topics([topic], validate_only=validate_only))
    return ErrorCode.none if result.error is None else result.error.code


def test_a_command_whose_change_is_stored_waits_for_no_connection() -> None:
    """The change was confirmed, and the connection lost before the broker had read it from the list."""

    async def scenario(plane: ControlPlane) -> None:
        controller = await plane.controller()
        append = controller.store.append

        async def append_and_lose(operations: Sequence[Operation]) -> int:
            number = await append(operations)
            plane.model.cut(controller.name)
            plane.model.lose_connection(controller.name, happened=True)
            return number

        controller.store.append = append_and_lose  # type: ignore[method-assign]
        async with asyncio.timeout(SESSION_S):
            assert await refusal(controller, NewTopic("t", 1, 3)) is ErrorCode.not_controller
            controller.store.append = append  # type: ignore[method-assign]
            assert await refusal(controller, NewTopic("u", 1, 3)) is ErrorCode.not_controller
        plane.model.heal(controller.name)
        await plane.settled()
        assert set(controller.image.topics) == {"t"}, "the change is not lost, although its client was refused"

    run(scenario)


def test_a_command_without_a_change_is_not_answered_by_a_controller_that_could_not_write() -> None:
    """Cut off, it counts itself as controller until it notices; the image that it answers from may be an old one."""

    async def scenario(plane: ControlPlane) -> None:
        controller = await plane.controller()
        assert await refusal(controller, NewTopic("t", 1, 3)) is ErrorCode.none
        assert await refusal(controller, NewTopic("t", 1, 3)) is ErrorCode.topic_already_exists
        plane.model.cut(controller.name)
        begun_s = asyncio.get_running_loop().time()
        answers = [
            asyncio.ensure_future(refusal(controller, NewTopic("t", 1, 3))),
            asyncio.ensure_future(refusal(controller, NewTopic("u", 1, 3), validate_only=True)),
        ]
        await asyncio.sleep(0)
        assert controller.controller.is_active
        assert await asyncio.gather(*answers) == [ErrorCode.not_controller] * 2
        assert asyncio.get_running_loop().time() - begun_s < SESSION_S
        plane.model.heal(controller.name)

    run(scenario)
