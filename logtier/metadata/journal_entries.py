"""The entries of the local metadata store's journal, and the nodes that they leave. Pure, but for the reading.

Each entry is JSON, `{"zxid": n, "changes": [...]}` with changes `[path, data, version, czxid, mzxid]`, or `[path]` for
a deleted node; data is Latin-1 text, to keep the JSON legible. Each entry with changes has one offset; a compacted
journal ends with `{"end_offset": n, "zxid": n}`: the number of entries, and the last zxid, before the compaction.
Entries of the format before zxids are the list of changes alone, without czxid and mzxid, and count as zxids 1, 2, ...
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from headwater.logtier.metadata.journal import CorruptJournalError, decode_entries
from headwater.logtier.metadata.store import StoreUnavailableError
from headwater.logtier.metadata.tree import Node, NodeTree
from headwater.logtier.runtime.disk import Disk

JOURNAL_FILE: Final = "journal"
"""Name of the journal in the store's folder."""

UNREADABLE_ENTRIES: Final = (
    "the metadata journal has entries that this version cannot read; use the version that wrote it"
)

_END_OFFSET: Final = "end_offset"
_ZXID: Final = "zxid"
_CHANGES: Final = "changes"


@dataclass(slots=True)
class ReplayedNodes:
    """The nodes after the entries so far, the number of the next durable change, and the last zxid."""

    tree: NodeTree = field(default_factory=NodeTree)
    end_offset: int = 0
    zxid: int = 0

    def apply(self, payload: bytes) -> None:
        """Apply the next entry; KeyError, TypeError or ValueError if this version cannot read it."""
        entry = orjson.loads(payload)
        if isinstance(entry, list):
            self.zxid += 1
            self.tree.load(_decode_without_zxids(entry, self.zxid, self.tree))
            self.end_offset += 1
        elif _CHANGES in entry:
            self.tree.load(_decode(entry[_CHANGES]))
            self.zxid = int(entry[_ZXID])
            self.end_offset += bool(entry[_CHANGES])
        else:
            self.end_offset = int(entry[_END_OFFSET])
            self.zxid = int(entry.get(_ZXID, self.zxid))


def read_local_nodes(disk: Disk, directory: str) -> ReplayedNodes:
    """Return the nodes of a local store that no process uses, without a change of its files.

    Raises:
        StoreUnavailableError: With one line: the journal is missing, damaged, or of another version.
    """
    path = os.path.join(directory, JOURNAL_FILE)
    replayed = ReplayedNodes()
    try:
        payloads, _ = decode_entries(disk.read(path), path)
        for payload in payloads:
            replayed.apply(payload)
    except CorruptJournalError as error:
        raise StoreUnavailableError(directory, str(error)) from None
    except (KeyError, TypeError, ValueError):
        raise StoreUnavailableError(directory, UNREADABLE_ENTRIES) from None
    except OSError as error:
        raise StoreUnavailableError(
            directory, f"the metadata journal cannot be read: {error.strerror or error}"
        ) from None
    return replayed


def encode_changes(zxid: int, changes: Iterable[tuple[str, Node | None]]) -> bytes:
    """Encode an entry with changes."""
    encoded = [
        (path,) if node is None else (path, node.data.decode("latin-1"), node.version, node.czxid, node.mzxid)
        for path, node in changes
    ]
    return orjson.dumps({_ZXID: zxid, _CHANGES: encoded})


def encode_end(end_offset: int, zxid: int) -> bytes:
    """Encode the last entry of a compacted journal."""
    return orjson.dumps({_END_OFFSET: end_offset, _ZXID: zxid})


def _decode(changes: Iterable[Sequence[Any]]) -> Iterable[tuple[str, Node | None]]:
    for path, *rest in changes:
        if rest:
            data, version, czxid, mzxid = rest
            yield path, Node(data.encode("latin-1"), version, czxid, mzxid)
        else:
            yield path, None


def _decode_without_zxids(
    changes: Iterable[Sequence[Any]], zxid: int, tree: NodeTree
) -> Iterable[tuple[str, Node | None]]:
    """Decode an entry of the format before zxids."""
    for path, *rest in changes:
        if rest:
            data, version = rest
            czxid = tree.node(path).czxid if version and tree.exists(path) else zxid
            yield path, Node(data.encode("latin-1"), version, czxid, zxid)
        else:
            yield path, None
