"""A file of checksummed entries, appended one after the other: the durable state of the local metadata store.

Layout: the 8 bytes of `HEADER`, then entries of a mark (4 bytes), the payload's length and CRC-32C (big-endian, 4 bytes
each) and the payload. The mark contains a byte that never occurs in UTF-8 text, and so is never found inside a payload:
this distinguishes a torn last entry (a crash during a write; never acknowledged) from a damaged one in the middle (a
disk that lost confirmed data).
"""

import contextlib
import errno
import os
import struct
from collections.abc import Iterable
from typing import Final

import crc32c

from headwater.logtier.runtime.completed import completed
from headwater.logtier.runtime.disk import Disk, File

HEADER: Final = b"HWMETA\x00\x01"

ENTRY_BYTES_MAX: Final = 64 << 20
"""Longest payload: 10,000 topics in one request are 3 MB."""

_MARK: Final = b"\xc1HWE"
_ENTRY: Final = struct.Struct(">4sII")
# With these errors the folder of a sync could not be opened: the sync may be retried.
_NOT_TRIED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


class CorruptJournalError(Exception):
    """A journal is damaged before its end: confirmed metadata is lost, and an administrator must decide."""


class SyncFailedError(OSError):
    """A sync failed; the kernel may have dropped the data, and a second sync would not report it."""


def encode_entry(payload: bytes) -> bytes:
    """Encode an entry of the file; ValueError above ENTRY_BYTES_MAX."""
    if len(payload) > ENTRY_BYTES_MAX:
        raise ValueError(f"a journal entry of {len(payload)} bytes: {ENTRY_BYTES_MAX} is the limit")
    return _ENTRY.pack(_MARK, len(payload), crc32c.crc32c(payload)) + payload


def decode_entries(data: bytes, path: str) -> tuple[list[bytes], int]:
    """Return the payloads of a journal, and the size of its whole entries, after which a torn entry may follow.

    Raises:
        CorruptJournalError: The data is not a journal, or is damaged before its last entry.

    >>> decode_entries(HEADER + encode_entry(b"a") + encode_entry(b"b")[:-1], "journal")
    ([b'a'], 21)
    """
    if not data.startswith(HEADER):
        raise CorruptJournalError(
            f"{path} is not a metadata journal of this version (its first bytes are {data[:8]!r})"
        )
    payloads = []
    position = len(HEADER)
    while position < len(data):
        payload = _entry_at(data, position)
        if payload is None:
            _check_torn_tail(data, position, path)
            break
        payloads.append(payload)
        position += _ENTRY.size + len(payload)
    return payloads, position


def _entry_at(data: bytes, position: int) -> bytes | None:
    if position + _ENTRY.size > len(data):
        return None
    mark, length, crc = _ENTRY.unpack_from(data, position)
    start = position + _ENTRY.size
    if mark != _MARK or length > ENTRY_BYTES_MAX or start + length > len(data):
        return None
    payload = data[start : start + length]
    return payload if crc32c.crc32c(payload) == crc else None


def _check_torn_tail(data: bytes, position: int, path: str) -> None:
    """Raise CorruptJournalError if a whole entry follows: then the damaged entry was confirmed."""
    later = data.find(_MARK, position + 1)
    while later >= 0:
        if _entry_at(data, later) is not None:
            raise CorruptJournalError(
                f"{path} is damaged at byte {position} and whole entries follow: metadata that was confirmed is lost. "
                "Check the disk for errors, then restore the file from a backup."
            )
        later = data.find(_MARK, later + 1)


class Journal:
    """The open file. Invariant: its first `size_bytes` bytes are whole entries, also after a failed append.

    File: `path`. Only the local metadata store uses it, one call at a time.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: File | None = None
        # Whether the name of the file is on the device.
        self._is_name_synced = True

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._opened.size

    @property
    def _opened(self) -> File:
        assert self._file is not None, "open the journal first"
        return self._file

    async def open(self) -> list[bytes]:
        """Open or create the file, cut off a torn last entry, and return the payloads in order."""
        if not self._disk.exists(self._path):
            await self.rewrite([])
            return []
        payloads, whole = decode_entries(self._disk.read(self._path), self._path)
        self._file = self._disk.open(self._path)
        if whole < self._file.size:
            self._file.truncate(whole)
            await completed(self._disk.fsync_in_background([self._file]))
        return payloads

    async def append(self, payload: bytes) -> None:
        """Add an entry, which is on the device on return; other tasks run during the sync.

        Raises:
            SyncFailedError: The state of the entry is unknown.
            OSError: Any other error; nothing was added.
        """
        await self._sync_name()
        self._opened.append([encode_entry(payload)])
        try:
            await completed(self._disk.fsync_in_background([self._opened]))
        except OSError as error:
            raise SyncFailedError(error.errno, error.strerror or str(error)) from error

    async def rewrite(self, payloads: Iterable[bytes]) -> None:
        """Replace all entries atomically: a crash leaves the old file or the new one.

        The new file is opened before it takes the old file's name. After an OSError one of them is open for appends;
        after SyncFailedError it is unknown which of them a power loss leaves.
        """
        temporary = f"{self._path}.tmp"
        file = self._disk.open(temporary, create=True)
        try:
            file.truncate(0)
            file.append([b"".join([HEADER, *map(encode_entry, payloads)])])
            await completed(self._disk.fsync_in_background([file]))
            self._disk.rename(temporary, self._path)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                self._disk.remove(temporary)
            raise
        self.close()
        self._file = file
        self._is_name_synced = False
        await self._sync_name()

    async def _sync_name(self) -> None:
        """Sync the name of a new file, without which a power loss would lose its entries."""
        if self._is_name_synced:
            return
        try:
            await completed(self._disk.fsync_in_background([], [os.path.dirname(self._path)]))
        except OSError as error:
            if error.errno in _NOT_TRIED:
                raise
            raise SyncFailedError(error.errno, error.strerror or str(error)) from error
        self._is_name_synced = True

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
