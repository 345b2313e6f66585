"""Finds the file system of a path, and whether HDFS is reached over HTTP or needs a JVM."""

from __future__ import annotations

import socket
import sys
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Final

from headwater.pipelines.file_systems import hadoop_settings
from headwater.pipelines.file_systems.file_system import FileSystem, FileSystemError
from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.file_systems.options import FileSystemOptions
from headwater.pipelines.file_systems.schemes import is_local, scheme_fault, scheme_of

__all__ = ["file_system", "is_local", "qualified_url", "scheme_of"]

#: The time that a server has to accept a connection before another way is looked for.
_PROBE_S: Final = 5.0
_KERBEROS: Final = "kerberos"


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def qualified_url(url: str, options: FileSystemOptions | None = None) -> str:
    """Return a URL with the NameNode or nameservice that the settings have for `hdfs:///...`. Raises FileSystemError.

    Spark's checkpoints need it: Hadoop's FileContext does not complete a URL.

    >>> qualified_url("hdfs:///lake/", FileSystemOptions(hadoop={"fs.defaultFS": "hdfs://nn:8020"}))
    'hdfs://nn:8020/lake'
    """
    if scheme_of(url) != "hdfs":
        return url.rstrip("/")
    try:
        authority, path = hadoop_settings.qualified(url, (options or FileSystemOptions.of()).hadoop)
    except hadoop_settings.HadoopSettingsError as error:
        raise FileSystemError(str(error)) from None
    return f"hdfs://{authority}{path}".rstrip("/")


def file_system(
    path: str, options: FileSystemOptions | None = None, say: Callable[[str], None] = _on_stderr
) -> FileSystem:
    """Return the file system of a path or URL; `options` are those of the environment unless they are given.

    `say` hears that a JVM is started. Raises FileSystemError for a scheme that is not supported, and for settings that
    are wrong.

    >>> file_system("/lake/flights").is_atomic
    True
    """
    fault = scheme_fault(path)
    if fault:
        raise FileSystemError(fault)
    if is_local(path):
        return LocalFiles()
    options = options or FileSystemOptions.of()
    if scheme_of(path) == "hdfs":
        return _hdfs(path, options, say)
    from headwater.pipelines.file_systems.object_store import ObjectStoreFiles

    return ObjectStoreFiles(options)


def _hdfs(path: str, options: FileSystemOptions, say: Callable[[str], None]) -> FileSystem:
    from headwater.pipelines.file_systems.hadoop_jvm import OwnJvm
    from headwater.pipelines.file_systems.jvm_files import JvmFiles
    from headwater.pipelines.file_systems.webhdfs import WebHdfsFiles

    try:
        authority = hadoop_settings.qualified(path, options.hadoop)[0]
        urls = options.webhdfs or hadoop_settings.http_addresses(authority, options.hadoop)
        servers = hadoop_settings.rpc_addresses(authority, options.hadoop)
    except hadoop_settings.HadoopSettingsError as error:
        raise FileSystemError(str(error)) from None
    if options.hadoop.get("hadoop.security.authentication") == _KERBEROS and not options.token:
        reason = "HDFS uses Kerberos, and there is no delegation token"
    elif options.webhdfs or _any_answers([urllib.parse.urlsplit(url).netloc for url in urls]):
        return WebHdfsFiles(urls, options)
    elif not _any_answers(servers):
        return WebHdfsFiles(urls, options)  # HDFS is down; it is asked again for a while
    else:
        reason = f"WebHDFS is closed at {', '.join(urls)}"
    say(f"{reason}: a Java process is started for files on hdfs://{authority}")
    return JvmFiles("hdfs", OwnJvm(options.hadoop))


def _any_answers(addresses: Sequence[str]) -> bool:
    """Whether a server accepts connections at one of these addresses (host:port)."""
    for address in addresses:
        split = urllib.parse.urlsplit(f"//{address}")
        try:
            socket.create_connection((split.hostname or "", split.port or 0), _PROBE_S).close()
        except OSError:
            continue
        return True
    return False
