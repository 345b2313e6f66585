"""Files of Hadoop's file systems through a JVM: HDFS where HTTP is closed, and stores that only Hadoop's client knows.

A file gets its name by `FileContext.rename`, which replaces a file only if told to, and is atomic on HDFS.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, cast

from headwater.pipelines.file_systems.file_system import Entry, FileSystemError, read_whole, unused_name_beside

__all__ = ["JvmFiles"]

_BUFFER_BYTES: Final = 1 << 20
#: Of one call: each costs some milliseconds, however little it carries.
_READ_BYTES: Final = 4 << 20
#: Hadoop's file systems whose rename is atomic.
_ATOMIC: Final = ("hdfs", "viewfs")


class JvmFiles:
    """Hadoop's file systems in the JVM of a py4j gateway.

    `configured` returns the gateway and Hadoop's Configuration in its JVM; an instance can be pickled if it can.
    """

    def __init__(self, scheme: str, configured: Callable[[], tuple[Any, Any]]) -> None:
        self.is_atomic = scheme in _ATOMIC
        self._configured = configured

    def _path(self, path: str) -> Any:
        """Return Hadoop's path, with the default file system's authority: not all of Hadoop completes `hdfs:///`."""
        gateway, conf = self._configured()
        fs = gateway.jvm.org.apache.hadoop.fs
        scheme, _, rest = path.partition("://")
        if rest.startswith("/") and scheme != "file":
            path = f"{scheme}://{fs.FileSystem.getDefaultUri(conf).getAuthority()}{rest}"
        return fs.Path(path)

    def _files(self, path: str) -> Any:
        return self._path(path).getFileSystem(self._configured()[1])

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        try:
            with self.open(path) as file:
                return read_whole(path, file)
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a file for reading; it can be sought."""
        with _explained(path):
            length = int(self._files(path).getFileStatus(self._path(path)).getLen())
            download = _Download(path, self._files(path).open(self._path(path)), length)
        with io.BufferedReader(download, _BUFFER_BYTES) as file:
            yield file

    def entry(self, path: str) -> Entry | None:
        """Describe a file or folder; None if missing."""
        with _explained(path):
            status = self._status(path)
        return None if status is None else _entry(status)

    def list(self, folder: str) -> list[Entry]:
        """Return the entries of a folder by name."""
        with _explained(folder):
            status = self._status(folder)
            if status is None:
                return []
            if not status.isDirectory():
                raise FileSystemError(f"{folder} is a file, not a folder")
            found = [_entry(each) for each in self._files(folder).listStatus(self._path(folder))]
        return sorted(found, key=lambda each: each.name)

    def _status(self, path: str) -> Any:
        try:
            with _explained(path):
                return self._files(path).getFileStatus(self._path(path))
        except FileNotFoundError:
            return None

    # -- writing -----------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> bool:
        """Write a new file; False if the path exists."""
        if self.entry(path) is not None:
            return False
        temporary = self._written(path, data)
        try:
            self.rename(temporary, path)
        except FileExistsError:
            self.delete(temporary)
            return False
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Write a file, in place of one that exists."""
        temporary = self._written(path, data)
        with _explained(path):
            self._rename(temporary, path, overwrite=True)

    def _written(self, path: str, data: bytes) -> str:
        """Write a file of its own beside the path."""
        temporary = unused_name_beside(path)
        with self.writer(temporary) as file:
            file.write(data)
        return temporary

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[BinaryIO]:
        """Write a large file."""
        with _explained(path):
            upload = _Upload(path, self._files(path).create(self._path(path), True))
        file = io.BufferedWriter(upload, _BUFFER_BYTES)
        try:
            yield cast("BinaryIO", file)
            file.flush()
            upload.finish()
        finally:
            upload.disconnect()
            file.close()

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder to an unused name."""
        with _explained(source):
            if self._status(source) is None:
                raise FileNotFoundError(f"there is no {source}")
            self._files(target).mkdirs(self._path(target).getParent())
            try:
                self._rename(source, target, overwrite=False)
            except FileExistsError:
                raise
            except Exception:
                if self._status(target) is not None:
                    raise FileExistsError(f"{target} exists already") from None
                raise

    def _rename(self, source: str, target: str, *, overwrite: bool) -> None:
        from py4j.protocol import Py4JJavaError

        gateway, conf = self._configured()
        fs = gateway.jvm.org.apache.hadoop.fs
        options = gateway.new_array(fs.Options.Rename, 1)
        options[0] = fs.Options.Rename.OVERWRITE if overwrite else fs.Options.Rename.NONE
        old, new = self._path(source), self._path(target)
        try:
            context = fs.FileContext.getFileContext(self._files(source).makeQualified(old).toUri(), conf)
        except Py4JJavaError as error:
            if self.is_atomic or _name(error) != "UnsupportedFileSystemException":
                raise
            self._rename_plainly(source, target, overwrite=overwrite)
            return
        context.rename(old, new, options)

    def _rename_plainly(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename in a file system that Hadoop's FileContext does not know: look first, then rename."""
        files, old, new = self._files(source), self._path(source), self._path(target)
        if files.exists(new):
            if not overwrite:
                raise FileExistsError(f"{target} exists already")
            files.delete(new, True)
        if not files.rename(old, new):
            raise FileSystemError(f"{source} cannot be renamed to {target}")

    def make_folder(self, path: str) -> None:
        """Make a folder with those above it."""
        with _explained(path):
            self._files(path).mkdirs(self._path(path))

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with its content."""
        with _explained(path):
            self._files(path).delete(self._path(path), True)


class _Download(io.RawIOBase):
    """A file's content, read from Hadoop's stream."""

    def __init__(self, path: str, stream: Any, length: int) -> None:
        super().__init__()
        self._path = path
        self._stream = stream
        self._length = length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._length - self._at)
        if count <= 0:
            return 0
        with _explained(self._path):
            self._stream.seek(self._at)
            data = bytes(self._stream.readNBytes(count))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def readall(self) -> bytes:
        parts = []
        while part := self.read(_READ_BYTES):
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(Exception):
                self._stream.close()
        super().close()


class _Upload(io.RawIOBase):
    """A content on its way into Hadoop's stream; nothing is written after `disconnect`."""

    def __init__(self, path: str, stream: Any) -> None:
        super().__init__()
        self._path = path
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        content = bytes(data)
        if self._stream is not None:
            with _explained(self._path):
                self._stream.write(content)
        return len(content)

    def finish(self) -> None:
        """Sync the content to the device, and end it."""
        with _explained(self._path):
            self._stream.hsync()
            self._stream.close()
        self._stream = None

    def disconnect(self) -> None:
        """End the file as far as it has come."""
        if self._stream is not None:
            with contextlib.suppress(Exception):
                self._stream.close()
        self._stream = None


def _name(error: Any) -> str:
    return str(error.java_exception.getClass().getSimpleName())


def _entry(status: Any) -> Entry:
    is_folder = bool(status.isDirectory())
    size = 0 if is_folder else int(status.getLen())
    return Entry(str(status.getPath().getName()), is_folder, size, status.getModificationTime() / 1000)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Name the path in a failure, and translate those of Hadoop's exceptions that callers distinguish."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        name = _name(error)
        lines = str(error.java_exception.getMessage() or name).splitlines()
        if name == "FileNotFoundException":
            raise FileNotFoundError(f"there is no {path}") from error
        if name == "FileAlreadyExistsException":
            raise FileExistsError(f"{path} exists already") from error
        raise FileSystemError(f"{path} cannot be used: {lines[0]}") from error
    except (Py4JError, ConnectionError) as error:
        raise FileSystemError(f"{path} cannot be used: the connection to the Java process is lost") from error
