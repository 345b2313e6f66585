"""UnregisterBroker: forgets a broker that is away, and no other one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.logtier.handlers.cluster import unregister_broker
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.store import Create
from headwater.logtier.protocol.errors import ErrorCode
from tests.handler_client import Client, run

if TYPE_CHECKING:
    from headwater.logtier.controller.controller import Controller


def controller_of(client: Client) -> Controller:
    return client.services.controller


async def unregister(client: Client, broker_id: int) -> tuple[ErrorCode, str | None]:
    answer: Any = await client.send(unregister_broker, 0, broker_id=broker_id)
    return answer.error_code, answer.error_message


async def note_as_away(client: Client, broker_id: int) -> None:
    data = paths.encode_known_broker("gone.example", 9092, None, 7, is_alive=False)
    controller = controller_of(client)
    await controller._command(lambda: controller._write([Create(paths.known_broker_path(broker_id), data)]))


def test_a_broker_that_runs_or_never_was_is_not_unregistered(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        code, line = await unregister(client, 1)
        assert code is ErrorCode.invalid_request
        assert line == "Broker 1 is running: stop it, and unregister it when its session has ended."
        assert await unregister(client, 9) == (
            ErrorCode.broker_id_not_registered,
            "Broker ID 9 is not currently registered",
        )
        assert set(client.services.metadata.image.registrations) == {1}

    run(tmp_path, scenario)


def test_a_broker_that_is_away_is_forgotten_once(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        await note_as_away(client, 2)
        assert set(client.services.metadata.image.registrations) == {1, 2}
        end = controller_of(client).metadata_end_offset
        assert await unregister(client, 2) == (ErrorCode.none, None)
        assert set(client.services.metadata.image.registrations) == {1}
        assert controller_of(client).metadata_end_offset == end + 1, "it is a change of the list"
        assert (await unregister(client, 2))[0] is ErrorCode.broker_id_not_registered

    run(tmp_path, scenario)


def test_a_broker_that_has_just_come_back_is_not_forgotten(tmp_path: Path) -> None:
    """The controller has not noted it yet."""

    async def scenario(client: Client) -> None:
        await note_as_away(client, 2)
        store = controller_of(client)._store
        await store.create(paths.broker_path(2), paths.encode_broker("here.example", 9092, None), ephemeral=True)
        assert (await unregister(client, 2))[0] is ErrorCode.invalid_request
        assert set(client.services.metadata.image.registrations) == {1, 2}

    run(tmp_path, scenario)


def test_a_controller_that_was_deposed_unregisters_no_broker(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        await note_as_away(client, 2)
        await controller_of(client)._store.set(paths.CONTROLLER_EPOCH, b"99")
        assert (await unregister(client, 2))[0] is ErrorCode.not_controller
        assert set(client.services.metadata.image.registrations) == {1, 2}

    run(tmp_path, scenario)
