"""Random changes of nodes, and a follower that reads what its watches tell it of."""

from __future__ import annotations

import asyncio
import random

from headwater.logtier.metadata.store import (
    Create,
    Delete,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SetData,
    StoreUnavailableError,
)

PATHS = ["/a", "/a/b", "/a/b/c", "/a/d", "/e"]


async def random_change(store: MetadataStore, chance: random.Random) -> None:
    """One random change, which may be refused."""
    path = chance.choice(PATHS)
    kinds: list[Operation] = [
        Create(path, b"%d" % chance.randrange(1000)),
        SetData(path, b"%d" % chance.randrange(1000)),
        Delete(path),
    ]
    operations = chance.choices(kinds, [3, 3, 2], k=chance.choice([1, 1, 2]))
    try:
        if len(operations) == 1:
            await single(store, operations[0])
        else:
            await store.multi(operations)
    except (NodeExistsError, NoNodeError, NotEmptyError):
        pass


class FollowedNodes:
    """What a follower knows of nodes: it reads each again when its watch is called.

    Invariant: once changes have stopped and the store is connected, `known` becomes what is there.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.known: dict[str, tuple[int, int, tuple[str, ...]] | None] = {}
        self.stale: set[str] = set()
        self.is_stale = asyncio.Event()
        for path in PATHS:
            store.watch(path, self.note)
            self.note(path)

    def note(self, path: str) -> None:
        self.stale.add(path)
        self.is_stale.set()

    async def follow(self) -> None:
        while True:
            await self.is_stale.wait()
            self.is_stale.clear()
            stale, self.stale = self.stale, set()
            for path in sorted(stale):
                try:
                    self.known[path] = await state(self.store, path)
                except StoreUnavailableError:
                    continue  # Its watch is called when the store is connected again.


async def state(store: MetadataStore, path: str) -> tuple[int, int, tuple[str, ...]] | None:
    """A node's creation, version and children: of one moment or, at a change meanwhile, followed by a call."""
    try:
        node = await store.get(path)
        return node.czxid, node.version, tuple(await store.children(path))
    except NoNodeError:
        return None


async def single(store: MetadataStore, operation: Operation) -> None:
    if isinstance(operation, Create):
        await store.create(operation.path, operation.data, ephemeral=operation.ephemeral)
    elif isinstance(operation, Delete):
        await store.delete(operation.path, operation.expected_version)
    elif isinstance(operation, SetData):
        await store.set(operation.path, operation.data, operation.expected_version)
