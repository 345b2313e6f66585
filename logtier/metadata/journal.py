"""A file of checksummed entries, appended one after the other: what the local metadata store survives by.

Layout: the 8 bytes of `HEADER`, then entries of a mark (4 bytes), the payload's length and CRC-32C (big-endian, 4 bytes
each) and the payload. The mark holds a byte that no UTF-8 text has, so it is never found inside a payload: that is how
a torn last entry (a crash in the middle of a write; never acknowledged) is told from a broken one in the middle (a disk
that lost what it had confirmed).
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
# A sync of a folder that fails so could not open it: it may be tried again.
_NOT_TRIED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


class CorruptJournalError(Exception):
    """A journal that is broken before its end: confirmed metadata is lost, and only a person can decide what to do."""


class SyncFailedError(OSError):
    """The device did not take what was written; the kernel may have dropped it, and a second sync would not tell."""


def encode_entry(payload: bytes) -> bytes:
    """An entry as it stands in the file."""
    if len(payload) > ENTRY_BYTES_MAX:
        raise ValueError(f"a journal entry of {len(payload)} bytes: {ENTRY_BYTES_MAX} is the limit")
    return _ENTRY.pack(_MARK, len(payload), crc32c.crc32c(payload)) + payload


def decode_entries(data: bytes, path: str) -> tuple[list[bytes], int]:
    """The payloads of a journal's bytes, and the size up to which it is whole: what follows is a torn entry.

    Raises:
        CorruptJournalError: if it is no journal, or broken before its last entry.

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
    """CorruptJournalError if a whole entry follows: then the bad one was confirmed before it broke."""
    later = data.find(_MARK, position + 1)
    while later >= 0:
        if _entry_at(data, later) is not None:
            raise CorruptJournalError(
                f"{path} is damaged at byte {position} and whole entries follow: metadata that was confirmed is lost. "
                "Restore the file from a copy, or look for the disk's errors first."
            )
        later = data.find(_MARK, later + 1)


class Journal:
    """The open file. Invariant: `size_bytes` bytes of it are whole entries; a failed append leaves them so.

    File: `path`. Only the local metadata store uses it, one call at a time.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: File | None = None
        # Whether the file is found under its name after a power loss.
        self._is_name_synced = True

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self._opened.size

    @property
    def _opened(self) -> File:
        assert self._file is not None, "open the journal first"
        return self._file

    async def open(self) -> list[bytes]:
        """Open it, made if it is not there; cut off a torn last entry; the payloads in order."""
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
        """Add an entry; it is on the device on return. The wait leaves the loop to others.

        Raises SyncFailedError, after which nothing is known of the entry; any other OSError adds nothing.
        """
        await self._sync_name()
        self._opened.append([encode_entry(payload)])
        try:
            await completed(self._disk.fsync_in_background([self._opened]))
        except OSError as error:
            raise SyncFailedError(error.errno, error.strerror or str(error)) from error

    async def rewrite(self, payloads: Iterable[bytes]) -> None:
        """Replace all entries, at once: a crash leaves the old file or the new one.

        The new file is open before it takes the old one's name. An OSError leaves one of them open, to be appended to;
        after SyncFailedError nobody knows which of them a power loss leaves.
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
        """What is appended to a new file counts only if that file is found after a power loss."""
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
