"""The lock of a pipeline whose checkpoints several machines see: the brokers keep it, by an id beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.datasource.options import WriteOptions
from headwater.pipelines.deployment.state_folder import StateFolder
from headwater.pipelines.errors import PipelineBusy, PipelineFailed
from headwater.pipelines.locks.broker_lock import BrokerLock, LockHeldError, LockUnavailableError
from headwater.pipelines.locks.owner import Owner

__all__ = ["LOCK_PREFIX", "hold_shared"]

#: Begins the names of the lock's group and transactional id.
LOCK_PREFIX: Final = "headwater.run."


@contextmanager
def hold_shared(
    brokers: Brokers, folder: StateFolder, what: str, on_lost: Callable[[str], None] = lambda _: None
) -> Iterator[BrokerLock]:
    """Hold the lock of a pipeline's checkpoints at a URL; `what` is the work that others are told of.

    Raises PipelineBusy, which names the holder's machine, PipelineFailed without an answer of the brokers, and
    FileSystemError.
    """
    client = WriteOptions.parse(connection_options(brokers)).client
    name = f"{LOCK_PREFIX}{folder.lock_id()}"
    with BrokerLock(client, name, f"the checkpoints {folder.path}", Owner.here(what), on_lost) as lock:
        try:
            lock.acquire()
        except LockHeldError as held:
            raise PipelineBusy(f"{held}; wait for it, or stop it there") from None
        except LockUnavailableError as error:
            raise PipelineFailed(str(error)) from error
        yield lock
