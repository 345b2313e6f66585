"""Files of HDFS over WebHDFS, its REST interface: without a JVM and without libhdfs.

A file gets its name by HDFS's rename, which is atomic and replaces a file only if told to: a file that is being written
has another name. Each file's id (its inode) tells whether a rename whose answer was lost has been done. Blocks are
synced to the DataNodes' devices when they are closed.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import posixpath
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final, cast

from headwater.pipelines.file_systems.file_system import READ_BYTES_MAX, Entry, FileSystemError, unused_name_beside
from headwater.pipelines.file_systems.hadoop_settings import qualified
from headwater.pipelines.file_systems.options import FileSystemOptions
from headwater.pipelines.file_systems.webhdfs_client import Meaning, Refusal, WebHdfsClient, answer_of

__all__ = ["WebHdfsFiles"]

_BUFFER_BYTES: Final = 1 << 20
#: The blocks of a file are synced when they are closed; without it they may be in the DataNodes' memory alone.
_SYNCED: Final = {"createflag": "CREATE,SYNC_BLOCK"}


class WebHdfsFiles:
    """The HDFS whose NameNodes serve WebHDFS at `urls`."""

    is_atomic: bool = True

    def __init__(self, urls: Sequence[str], options: FileSystemOptions) -> None:
        self._client = WebHdfsClient(list(urls), options.user, options.token, options.wait_s)
        self._settings = options.hadoop

    def _inside(self, path: str) -> str:
        return qualified(path, self._settings)[1]

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        with _explained(path):
            try:
                return self._client.read(self._inside(path), READ_BYTES_MAX)
            except Refusal as refused:
                if refused.meaning is Meaning.MISSING:
                    return None
                raise

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a file for reading; it can be sought."""
        with _explained(path):
            status = self._status(path)
            if status is None or status["type"] == "DIRECTORY":
                raise FileNotFoundError(f"there is no file {path}")
        with io.BufferedReader(_Download(self, self._client, path, self._inside(path), status), _BUFFER_BYTES) as file:
            yield file

    def entry(self, path: str) -> Entry | None:
        """Describe a file or folder; None if missing."""
        with _explained(path):
            status = self._status(path)
        return None if status is None else _entry(posixpath.basename(self._inside(path)), status)

    def list(self, folder: str) -> list[Entry]:
        """Return the entries of a folder by name."""
        found: list[Entry] = []
        after: dict[str, str] = {}
        with _explained(folder):
            while True:
                try:
                    answer = self._client.ask("GET", self._inside(folder), "LISTSTATUS_BATCH", **after)
                except Refusal as refused:
                    if refused.meaning is Meaning.MISSING:
                        return []
                    raise
                listing = answer.json()["DirectoryListing"]
                part = listing["partialListing"]["FileStatuses"]["FileStatus"]
                if len(part) == 1 and not part[0]["pathSuffix"]:
                    raise FileSystemError(f"{folder} is a file, not a folder")
                found += [_entry(status["pathSuffix"], status) for status in part]
                if not part or not listing["remainingEntries"]:
                    return sorted(found, key=lambda each: each.name)
                after = {"startAfter": part[-1]["pathSuffix"]}

    def _status(self, path: str) -> dict[str, Any] | None:
        try:
            status: dict[str, Any] = self._client.ask("GET", self._inside(path), "GETFILESTATUS").json()["FileStatus"]
        except Refusal as refused:
            if refused.meaning is Meaning.MISSING:
                return None
            raise
        return status

    # -- writing -----------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> bool:
        """Write a new file; False if the path exists."""
        with _explained(path):
            if self._status(path) is not None:
                return False
            temporary = self._written(path, data)
            try:
                self._renamed(temporary, path, "NONE")
            except FileExistsError:
                self.delete(temporary)
                return False
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Write a file, in place of one that exists."""
        with _explained(path):
            self._renamed(self._written(path, data), path, "OVERWRITE")

    def _written(self, path: str, data: bytes) -> str:
        """Write a file of its own beside the path."""
        temporary = unused_name_beside(path)
        self._client.write(self._inside(temporary), data, overwrite="true", **_SYNCED)
        return temporary

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[BinaryIO]:
        """Write a large file. Its content is sent once: a failure in the middle is one of the caller."""
        inside = self._inside(path)
        parameters = {"overwrite": "true", **_SYNCED}
        with _explained(path):
            connection, target = self._client.tried(
                inside, lambda: self._client.datanode("PUT", inside, "CREATE", parameters)
            )
        upload = _Upload(path, connection, target)
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
            self._renamed(source, target, "NONE")

    def _renamed(self, source: str, target: str, option: str) -> None:
        status = self._status(source)
        if status is None:
            raise FileNotFoundError(f"there is no {source}")
        for is_last in (False, True):
            try:
                self._client.ask(
                    "PUT", self._inside(source), "RENAME", destination=self._inside(target), renameoptions=option
                )
            except Refusal as refused:
                # An earlier request may have been done, and its answer lost.
                found = self._status(target)
                if found is not None and found["fileId"] == status["fileId"]:
                    return
                if found is not None and option == "NONE":
                    raise FileExistsError(f"{target} exists already") from None
                if self._status(source) is None:
                    raise FileNotFoundError(f"there is no {source}") from None
                if is_last or refused.meaning is not Meaning.MISSING:
                    raise
                self.make_folder(posixpath.dirname(target))
            else:
                return

    def make_folder(self, path: str) -> None:
        """Make a folder with those above it."""
        with _explained(path):
            self._client.ask("PUT", self._inside(path), "MKDIRS")

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with its content."""
        with _explained(path):
            self._client.ask("DELETE", self._inside(path), "DELETE", recursive="true")


class _Download(io.RawIOBase):
    """A file's content; a broken connection is opened anew where it ended, if the file is still the same."""

    def __init__(
        self, files: WebHdfsFiles, client: WebHdfsClient, path: str, inside: str, status: dict[str, Any]
    ) -> None:
        super().__init__()
        self._files = files
        self._client = client
        self._path = path
        self._inside = inside
        self._status = status
        self._length = int(status["length"])
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None
        self._response: http.client.HTTPResponse | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if at != self._at:
            self._disconnect()
            self._at = max(0, at)
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._length or not len(buffer):
            return 0
        with _explained(self._path):
            return self._client.tried(self._inside, lambda: self._read(buffer))

    def _read(self, buffer: Any) -> int:
        if self._response is None:
            found = self._files._status(self._path)
            if found is None or (found["fileId"], found["length"]) != (self._status["fileId"], self._length):
                raise FileSystemError(f"{self._path} has changed while it was read")
            self._connection, self._response = self._client.opened(self._inside, self._at)
        try:
            count = self._response.readinto(buffer)
        except (OSError, http.client.HTTPException):
            self._disconnect()
            raise
        if not count:
            self._disconnect()
            raise ConnectionError("the connection ended early")
        self._at += count
        return count

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._response = None

    def close(self) -> None:
        self._disconnect()
        super().close()


class _Upload(io.RawIOBase):
    """A content on its way to a DataNode, in chunks. Whole after `finish` only; nothing is sent after `disconnect`."""

    def __init__(self, path: str, connection: http.client.HTTPConnection, target: str) -> None:
        super().__init__()
        self._path = path
        self._connection: http.client.HTTPConnection | None = connection
        with _explained(path):
            connection.putrequest("PUT", target)
            connection.putheader("Content-Type", "application/octet-stream")
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view) and self._connection is not None:
            self._send(self._connection, b"%x\r\n" % len(view), view, b"\r\n")
        return len(view)

    def finish(self) -> None:
        """End the content, and wait until it is durable."""
        assert self._connection is not None
        self._send(self._connection, b"0\r\n\r\n")
        with _explained(self._path):
            answer_of(self._connection.getresponse())

    def _send(self, connection: http.client.HTTPConnection, *parts: bytes | memoryview) -> None:
        with _explained(self._path):
            try:
                for part in parts:
                    connection.send(part)
            except OSError:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    answer_of(connection.getresponse())  # it may say why it has closed the connection
                raise

    def disconnect(self) -> None:
        """Close the connection: HDFS closes the file as far as it has come."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _entry(name: str, status: dict[str, Any]) -> Entry:
    is_folder = status["type"] == "DIRECTORY"
    return Entry(name, is_folder, 0 if is_folder else int(status["length"]), status["modificationTime"] / 1000)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Name the path in a failure; errors that callers distinguish pass as they are."""
    try:
        yield
    except (FileSystemError, FileNotFoundError, FileExistsError):
        raise
    except (Refusal, OSError, http.client.HTTPException, KeyError, TypeError) as error:
        said = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise FileSystemError(f"{path} cannot be used: {said}") from error
