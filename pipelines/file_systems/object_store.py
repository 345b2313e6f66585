"""Objects of S3 and of stores with its interface, by pyarrow. The settings are those of Hadoop's `s3a`.

An object is there once it is whole. A store has no rename, only copies, and nothing here replaces no object by itself:
`create` and `rename` look first, so a commit is single only as long as its writer holds a lock (`is_atomic`).
"""

from __future__ import annotations

import contextlib
import io
import posixpath
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from headwater.pipelines.file_systems.file_system import Entry, FileSystemError, read_whole
from headwater.pipelines.file_systems.options import FileSystemOptions

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, S3FileSystem

__all__ = ["ObjectStoreFiles", "store_arguments"]

_BUFFER_BYTES: Final = 1 << 20
_CONNECT_S: Final = 10.0
_REQUEST_S: Final = 60.0
_ANONYMOUS: Final = "AnonymousAWSCredentialsProvider"


def store_arguments(bucket: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of pyarrow's S3FileSystem for a bucket, from the settings `fs.s3a.*`.

    Without keys, the environment of AWS applies: its variables, files and roles. A setting `fs.s3a.bucket.NAME.*` is
    that of one bucket.

    >>> store_arguments("lake", {"fs.s3a.endpoint": "http://s3:9000", "fs.s3a.bucket.lake.endpoint.region": "eu"})
    {'endpoint_override': 'http://s3:9000', 'region': 'eu'}
    >>> store_arguments("lake", {"fs.s3a.endpoint": "s3:9000", "fs.s3a.connection.ssl.enabled": "false"})
    {'endpoint_override': 's3:9000', 'region': 'us-east-1', 'scheme': 'http'}
    """

    def value(name: str) -> str:
        return settings.get(f"fs.s3a.bucket.{bucket}.{name}") or settings.get(f"fs.s3a.{name}") or ""

    found: dict[str, Any] = {}
    endpoint = value("endpoint").rstrip("/")
    if endpoint:
        found["endpoint_override"] = endpoint
        found["region"] = value("endpoint.region") or "us-east-1"
        if value("path.style.access").lower() == "false":
            found["force_virtual_addressing"] = True
    elif value("endpoint.region"):
        found["region"] = value("endpoint.region")
    if value("connection.ssl.enabled").lower() == "false":
        found["scheme"] = "http"
    if value("access.key"):
        found |= {"access_key": value("access.key"), "secret_key": value("secret.key")}
        if value("session.token"):
            found["session_token"] = value("session.token")
    elif _ANONYMOUS in value("aws.credentials.provider"):
        found["anonymous"] = True
    return found


class ObjectStoreFiles:
    """The stores of `s3a://BUCKET/...` and `s3://BUCKET/...`."""

    is_atomic: bool = False

    def __init__(self, options: FileSystemOptions) -> None:
        self._settings = {name: value for name, value in options.hadoop.items() if name.startswith("fs.s3a.")}
        self._lock = threading.Lock()
        self._stores: dict[str, S3FileSystem] = {}

    def __getstate__(self) -> dict[str, str]:
        return self._settings

    def __setstate__(self, settings: dict[str, str]) -> None:
        self.__init__(FileSystemOptions(hadoop=settings))  # type: ignore[misc]

    def _at(self, path: str) -> tuple[S3FileSystem, str]:
        """Return the store of a path, and the path there: the bucket and the key."""
        from pyarrow.fs import S3FileSystem

        inside = path.partition("://")[2].rstrip("/")
        bucket = inside.partition("/")[0]
        if not bucket:
            raise FileSystemError(f"{path} names no bucket: write s3a://BUCKET/...")
        with self._lock:
            if bucket not in self._stores:
                arguments = store_arguments(bucket, self._settings)
                self._stores[bucket] = S3FileSystem(connect_timeout=_CONNECT_S, request_timeout=_REQUEST_S, **arguments)
            return self._stores[bucket], inside

    def _info(self, path: str) -> FileInfo | None:
        from pyarrow.fs import FileType

        store, inside = self._at(path)
        info = store.get_file_info(inside)
        return None if info.type == FileType.NotFound else info

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        try:
            with self.open(path) as file, _explained(path):
                return read_whole(path, file)
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a file for reading; it can be sought."""
        with _explained(path):
            store, inside = self._at(path)
            opened = store.open_input_file(inside)
        # pyarrow's own file has no lines.
        with io.BufferedReader(cast("io.RawIOBase", opened), _BUFFER_BYTES) as file:
            yield file

    def entry(self, path: str) -> Entry | None:
        """Describe a file or folder; None if missing."""
        with _explained(path):
            info = self._info(path)
        return None if info is None else _entry(info)

    def list(self, folder: str) -> list[Entry]:
        """Return the entries of a folder by name."""
        from pyarrow.fs import FileSelector

        with _explained(folder):
            info = self._info(folder)
            if info is None:
                return []
            if info.is_file:
                raise FileSystemError(f"{folder} is a file, not a folder")
            store, inside = self._at(folder)
            found = store.get_file_info(FileSelector(inside, allow_not_found=True))
        return sorted((_entry(each) for each in found), key=lambda each: each.name)

    # -- writing -----------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> bool:
        """Write a new file; False if the path exists."""
        with _explained(path):
            if self._info(path) is not None:
                return False
        self.replace(path, data)
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Write a file, in place of one that exists."""
        with self.writer(path) as file:
            file.write(data)

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[BinaryIO]:
        """Write a large file."""
        with _explained(path):
            store, inside = self._at(path)
            above = self._info(posixpath.dirname(path))
            if above is not None and above.is_file:
                raise FileSystemError(f"{path} cannot be used: {posixpath.dirname(path)} is a file")
            file = store.open_output_stream(inside)
        try:
            yield cast("BinaryIO", file)
        finally:
            with _explained(path):
                file.close()

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder to an unused name, by copies."""
        from pyarrow.fs import FileSelector

        with _explained(source):
            info = self._info(source)
            if info is None:
                raise FileNotFoundError(f"there is no {source}")
            if self._info(target) is not None:
                raise FileExistsError(f"{target} exists already")
            store, old = self._at(source)
            new = self._at(target)[1]
            if info.is_file:
                store.move(old, new)
                return
            for each in store.get_file_info(FileSelector(old, recursive=True)):
                if each.is_file:
                    store.copy_file(each.path, new + each.path.removeprefix(old))
            store.delete_dir(old)

    def make_folder(self, path: str) -> None:
        """Make a folder with those above it."""
        with _explained(path):
            store, inside = self._at(path)
            store.create_dir(inside, recursive=True)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with its content."""
        with _explained(path):
            info = self._info(path)
            store, inside = self._at(path)
            if info is not None and info.is_file:
                store.delete_file(inside)
            elif info is not None:
                store.delete_dir(inside)


def _entry(info: FileInfo) -> Entry:
    modified_at = info.mtime.timestamp() if info.mtime is not None else 0.0
    is_folder = not info.is_file
    return Entry(info.base_name, is_folder, 0 if is_folder else info.size or 0, modified_at)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Name the path in a failure; errors that callers distinguish pass as they are."""
    try:
        yield
    except FileSystemError:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no {path}") from error
    except FileExistsError:
        raise
    except (OSError, ValueError) as error:
        said = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise FileSystemError(f"{path} cannot be used: {said}") from error
