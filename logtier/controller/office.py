"""The office of a controller: its writes are fenced by its epoch, and its waits end with it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headwater.logtier.metadata import paths
from headwater.logtier.metadata.change_list import ListMovedError
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.store import BadVersionError
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

Result = TypeVar("Result")


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
    """Wait until this broker has applied a change of its own, but not longer than it is controller.

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
            raise KafkaError(
                ErrorCode.not_controller, "This broker is not the controller any more; the change may be stored."
            )
        applying.result()
    finally:
        applying.cancel()
        deposing.cancel()
