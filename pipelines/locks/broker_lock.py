"""A lock that the brokers keep: one holder between all machines.

Two parts of Kafka's protocol make it. A consumer group, whose leader holds the lock, says who that is and notices that
a holder is gone: the coordinator drops a member whose heartbeats end. A transactional id fences: the next holder's
`InitProducerId` raises the epoch, so that a holder that was frozen, or cut off, learns by `confirm` that it is one no
more (KIP-98, KIP-360).

A lock keeps honest processes apart. It cannot make a commit single: a process can freeze between `confirm` and its
commit. That is the commit's own part, by a step that never replaces what another has written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from headwater.logtier.client.cluster import ClientConfig, ClusterClient
from headwater.logtier.client.errors import BrokerError, ClientError, ProducerFencedError
from headwater.logtier.client.group_member import GroupMember, MemberDescription, describe_members, remove_member
from headwater.logtier.client.transactional_producer import TransactionalProducer, TransactionConfig
from headwater.pipelines.locks.owner import Owner

__all__ = ["BrokerLock", "LockHeldError", "LockLostError", "LockUnavailableError"]

PROTOCOL: Final = "headwater-lock"
#: Kafka's default of the least session timeout that a broker allows is 6 s; a machine under load misses some beats.
SESSION_TIMEOUT_MS: Final = 15_000
HEARTBEAT_S: Final = 3.0
ASK_AGAIN_S: Final = 0.5
_DESCRIPTIONS_MAX: Final = 10
#: Kafka forgets an unused transactional id after seven days (transactional.id.expiration.ms).
CONFIRM_AT_LEAST_EVERY_S: Final = 3_600.0
_INVALID_PRODUCER_ID_MAPPING: Final = 49


class LockHeldError(Exception):
    """Another live process holds the lock."""

    def __init__(self, what: str, owner: Owner | None) -> None:
        self.owner = owner
        by = "another process, which does not say its name" if owner is None else str(owner)
        super().__init__(f"{what} is held by {by}")


class LockLostError(Exception):
    """Another process has taken the lock: this one must commit nothing more."""


class LockUnavailableError(Exception):
    """The brokers cannot be asked, or refuse."""


class BrokerLock:
    """The lock `name`; a context manager that releases it.

    Args:
        what: What the lock protects, for messages: `the target hdfs://lake/flights`.
        name: Names a consumer group and a transactional id, for which the user needs READ and WRITE.
        on_lost: Told once, in some thread, when another process has taken the lock.
    """

    def __init__(
        self,
        client: ClientConfig,
        name: str,
        what: str,
        owner: Owner,
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = name
        self._what = what
        self._owner = owner
        self._on_lost = on_lost
        self._client = dataclasses.replace(client, client_id=f"headwater-lock-{owner.process}")
        self._cluster = ClusterClient(self._client)
        self._fence = TransactionalProducer(self._cluster, TransactionConfig(name))
        self._turn = threading.Lock()  # of the heartbeats' thread and the caller's
        self._confirmed_s = time.monotonic()
        self._ended = threading.Event()
        self._lost: str | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def acquire(
        self,
        wait_s: float = 0.0,
        on_wait: Callable[[LockHeldError], None] | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take the lock, waiting for another holder for at most `wait_s`, or until `is_stopped`.

        `on_wait` is called once, before the wait.

        Raises LockHeldError and LockUnavailableError.
        """
        deadline_s = time.monotonic() + wait_s
        told = False
        while True:
            try:
                self._try_to_acquire()
            except LockHeldError as held:
                if time.monotonic() >= deadline_s or is_stopped():
                    raise
                if on_wait is not None and not told:
                    on_wait(held)
                told = True
            else:
                return
            time.sleep(min(ASK_AGAIN_S, max(deadline_s - time.monotonic(), 0.0)))

    def _try_to_acquire(self) -> None:
        try:
            self._require_free()
            # The thread has a client of its own, which it alone uses from then on.
            cluster = ClusterClient(self._client)
            member = GroupMember(
                cluster, self.name, PROTOCOL, self._owner.encode(), session_timeout_ms=SESSION_TIMEOUT_MS
            )
            try:
                if not member.join():
                    raise LockHeldError(self._what, self._holder())
                self._fence.initialise()
            except BaseException:
                with contextlib.suppress(ClientError):
                    member.leave()  # else it would refuse the next one for the time of a session
                cluster.close()
                raise
        except ClientError as error:
            raise LockUnavailableError(f"the lock of {self._what} cannot be taken: {error}") from error
        self._confirmed_s = time.monotonic()
        self._thread = threading.Thread(
            target=self._keep, args=(cluster, member), name=f"lock-{self.name}", daemon=True
        )
        self._thread.start()

    def _require_free(self) -> None:
        """Raise LockHeldError if a live process is in the group; a dead one of this machine is removed at once."""
        for member in self._members():
            owner = Owner.decode(member.metadata)
            if owner is None or not owner.is_dead:
                raise LockHeldError(self._what, owner)
            remove_member(self._cluster, self.name, member.member_id)

    def _members(self) -> Sequence[MemberDescription]:
        """The group's members. Their metadata is told in a stable group only: a rebalance passes soon."""
        for _ in range(_DESCRIPTIONS_MAX):
            members = describe_members(self._cluster, self.name)
            if all(member.metadata for member in members):
                break
            time.sleep(ASK_AGAIN_S)
        return members

    def _holder(self) -> Owner | None:
        owners = (Owner.decode(each.metadata) for each in self._members())
        return next((owner for owner in owners if owner is not None), None)

    def confirm(self) -> None:
        """Make sure, with the brokers, that this process still holds the lock: call it before each commit.

        Raises LockLostError, and LockUnavailableError if no broker answers in time.
        """
        if self._lost is not None:
            raise LockLostError(self._lost)
        try:
            with self._turn:
                self._fence.initialise()
                self._confirmed_s = time.monotonic()
        except ProducerFencedError:
            self._lose()
        except BrokerError as error:
            if error.code == _INVALID_PRODUCER_ID_MAPPING:  # the id had expired, and another process began anew
                self._lose()
            raise LockUnavailableError(f"the lock of {self._what} cannot be confirmed: {error}") from error
        except ClientError as error:
            raise LockUnavailableError(f"the lock of {self._what} cannot be confirmed: {error}") from error

    def _lose(self) -> None:
        is_new = self._lost is None
        self._lost = f"another process has taken {self._what} over: this one was frozen or cut off, and commits nothing"
        if is_new:
            self._on_lost(self._lost)
        raise LockLostError(self._lost)

    def _keep(self, cluster: ClusterClient, member: GroupMember) -> None:
        """Keep the membership, and the transactional id from expiring, until the lock is released.

        A membership that was lost is begun again. Whether the lock was lost with it is the fence's to say.
        """
        while not self._ended.wait(HEARTBEAT_S):
            try:
                if not member.heartbeat():
                    member.join()
                    self.confirm()  # another may have led meanwhile, and have ended
                if time.monotonic() - self._confirmed_s > CONFIRM_AT_LEAST_EVERY_S:
                    self.confirm()
            except (ClientError, LockUnavailableError):
                continue  # brokers that are away for a moment; `confirm` reports those that stay away
            except LockLostError:
                break
        try:
            member.leave()
        except ClientError:
            pass  # the session's timeout ends the membership
        finally:
            cluster.close()

    def release(self) -> None:
        """Release the lock, if it is held; idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._cluster.close()
