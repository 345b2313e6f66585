"""Files and folders on any of Hadoop's file systems (local disks, HDFS, object stores), through Spark's JVM.

For the few small files that decide on commits: they are synced to the device before they get their name.
"""

from __future__ import annotations

import os
import urllib.parse
from typing import TYPE_CHECKING, Any

from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFiles:
    """The file system of one path. Failures are Spark's py4j errors, which name the path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._fs = jvm.hadoop_file_system(spark, path)

    def _path(self, path: str) -> Any:
        return jvm.hadoop_path(self._spark, path)

    def exists(self, path: str) -> bool:
        """Whether a file or folder exists."""
        return bool(self._fs.exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; empty for a missing folder."""
        if not self.exists(folder):
            return []
        return sorted(str(status.getPath().getName()) for status in self._fs.listStatus(self._path(folder)))

    def files(self, folder: str) -> list[str]:
        """Every file below a folder, as a path relative to the folder, sorted."""
        root = self._fs.makeQualified(self._path(folder)).toUri().getPath()
        found = []
        listing = self._fs.listFiles(self._path(folder), True)
        while listing.hasNext():
            path = str(listing.next().getPath().toUri().getPath())
            found.append(path[len(root) :].lstrip("/"))
        return sorted(found)

    def read(self, path: str) -> str | None:
        """Read a small text file; None if missing."""
        if not self.exists(path):
            return None
        stream = self._fs.open(self._path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Write a small text file atomically: first to the device under another name. Replaces an existing file."""
        temporary = f"{path}.writing"
        stream = self._fs.create(self._path(temporary), True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        self.delete(path)
        self.rename(temporary, path)

    def make_folder(self, path: str) -> None:
        """Create a folder with its parents."""
        self._fs.mkdirs(self._path(path))

    def rename(self, source: str, target: str) -> None:
        """Move a file or a folder to an unused name. Raises OSError if the file system refuses."""
        if not self._fs.rename(self._path(source), self._path(target)):
            raise OSError(f"cannot rename {source} to {target}")
        self._sync(os.path.dirname(target))

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with its content, if it exists."""
        self._fs.delete(self._path(path), True)

    def _sync(self, folder: str) -> None:
        """Sync a folder: on a local disk, a new name is durable only after its folder is synced."""
        local = urllib.parse.urlsplit(folder)
        if local.scheme not in ("", "file") or not os.path.isdir(local.path):
            return
        descriptor = os.open(local.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
