"""Makes standard input, output and error safe for every command, whatever streams the caller left open.

A shell can start a command with a stream closed (`>&-`); Python then has None in its place, and the next opened file or
socket receives the stream's descriptor. `secure_streams` opens a descriptor there that fails like a closed one, so data
for the stream is refused and never reaches a connection. Errors of standard output name the stream (`/dev/full`, a
closed stream), and characters that the terminal's encoding lacks are written as escapes.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BUFFER_BYTES: Final = 64 << 10
"""Size of one write to a pipe or file: the capacity of a pipe."""

STANDARD_INPUT: Final = "standard input"
STANDARD_OUTPUT: Final = "standard output"

# What a stream is opened as in place of a closed one: the access that lets its use fail with EBADF, as on a closed
# descriptor. Nothing can be said about a closed standard error, so that one takes everything.
_IN_PLACE: Final = ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY))


class _StandardOutput(io.BufferedWriter):
    """Descriptor 1; its errors name standard output.

    Errors of the buffer are named instead of errors of the underlying file: an exception raised by a signal in the
    file, after the write, would leave the data in the buffer, and the data would be written twice.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, as BufferedWriter; an OSError has "standard output" as its `filename`."""
        with _named():
            return super().write(data)

    def flush(self) -> None:
        """Flush, as BufferedWriter; an OSError has "standard output" as its `filename`."""
        with _named():
            super().flush()


class _named:  # noqa: N801 (a context manager without a generator's cost: `consume` writes each message)
    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from None


def secure_streams() -> None:
    """Open closed streams, and name standard output; called once, before any other file is opened."""
    for descriptor, access in _IN_PLACE:
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free descriptor is taken, and those below are open.
            opened = os.open(os.devnull, access)
            assert opened == descriptor, (opened, descriptor)
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 (for as long as the process)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    # Another object is a test's or an embedding program's, which reads it.
    if sys.stdout is None or sys.stdout is sys.__stdout__:
        sys.stdout = _named_output("utf-8" if sys.stdout is None else sys.stdout.encoding)


def _named_output(encoding: str) -> io.TextIOWrapper:
    raw = io.FileIO(1, "w", closefd=False)
    return io.TextIOWrapper(
        _StandardOutput(raw, BUFFER_BYTES),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=raw.isatty(),
    )


def abandon_output() -> None:
    """Discard the buffered standard output: its reader has exited, and the interpreter would retry at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
