"""The office of a controller: its writes are fenced by its epoch, and its waits end with it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from headwater.logtier.metadata import paths
from headwater.logtier.metadata.change_list import ListMovedError, OrderedMetadataStore
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.store import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStoreError,
    NodeExistsError,
    SetData,
)
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

Result = TypeVar("Result")

DEPOSED_WAIT_S: Final = 1.0
"""How long a deposed controller still waits for a stored change of its own: the connection may be back in a moment, and
then the client learns what was done."""


async def take_office(
    store: OrderedMetadataStore, follower: MetadataFollower, controller: bytes
) -> tuple[int, int] | None:
    """Become controller; return the controller epoch and the version of its node, None if another broker is controller.

    The epoch of the new controller fences the writes of all earlier ones in the same transaction that makes it
    controller (KAFKA-6082).

    Args:
        controller: Data of the node `/controller`.
    """
    while True:
        node = await store.get(paths.CONTROLLER_EPOCH)
        epoch = paths.decode_controller_epoch(node.data) + 1
        end = store.end_offset
        try:
            number = await store.append(
                [
                    Create(paths.CONTROLLER, controller, ephemeral=True),
                    SetData(paths.CONTROLLER_EPOCH, str(epoch).encode(), node.version),
                ]
            )
        except (NodeExistsError, BadVersionError):
            return None
        except ListMovedError:
            await _read_up_to(follower, end)  # of the controller before, or of this election: its answer was lost
            continue
        await _read_up_to(follower, number)
        return epoch, node.version + 1


async def leave_office(store: OrderedMetadataStore, epoch_version: int) -> None:
    """Resign; `epoch_version` is that of `take_office`."""
    try:
        await store.append([Check(paths.CONTROLLER_EPOCH, epoch_version), Delete(paths.CONTROLLER)])
    except MetadataStoreError as error:
        # The end of the session deletes the node, too, only later.
        log.info("the controller could not resign: %s", error)


async def _read_up_to(follower: MetadataFollower, number: int) -> None:
    """Wait until the image has a change; that a disk error kept a log from following it prevents no election."""
    try:
        await follower.reached(number)
    except Exception:
        if number >= follower.applied:
            raise


async def fenced(write: Coroutine[Any, Any, Result], depose: Callable[[], None]) -> Result:
    """Return the result of a write that checks the controller's epoch.

    Args:
        depose: Called if the check fails: another broker has become controller.

    Raises:
        KafkaError: not_controller.
        MetadataStoreError: As of the write.
    """
    try:
        return await write
    except BadVersionError as error:
        if error.path != paths.CONTROLLER_EPOCH:
            raise
        cause: Exception = error
    except ListMovedError as error:
        cause = error
    depose()
    raise KafkaError(ErrorCode.not_controller, "Another broker has become controller.") from cause


async def applied_in_office(follower: MetadataFollower, number: int, deposed: asyncio.Event) -> None:
    """Wait until this broker has applied a change of its own, but not much longer than it is controller.

    Without a connection to the store nothing is applied, however long that lasts, and the client would wait as long.

    Raises:
        KafkaError: not_controller: the change is stored, and the next controller has it.
        Exception: As of `MetadataFollower.reached`.
    """
    if number < follower.applied:
        await follower.reached(number)
        return
    applying = asyncio.ensure_future(follower.reached(number))
    deposing = asyncio.ensure_future(deposed.wait())
    try:
        await asyncio.wait((applying, deposing), return_when=asyncio.FIRST_COMPLETED)
        if not applying.done():
            await asyncio.wait((applying,), timeout=DEPOSED_WAIT_S)
        if not applying.done():
            raise KafkaError(
                ErrorCode.not_controller, "This broker is not the controller any more; the change may be stored."
            )
        applying.result()
    finally:
        applying.cancel()
        deposing.cancel()
