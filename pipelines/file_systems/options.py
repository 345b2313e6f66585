"""Options of file systems: addresses, a user, settings of Hadoop. Can be pickled: tasks take it along."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headwater.pipelines.file_systems import hadoop_settings
from headwater.pipelines.file_systems.file_system import FileSystemError

__all__ = ["TOKEN_VARIABLE", "WAIT_S", "WEBHDFS_VARIABLE", "FileSystemOptions"]

WEBHDFS_VARIABLE: Final = "HEADWATER_WEBHDFS"
TOKEN_VARIABLE: Final = "HEADWATER_WEBHDFS_TOKEN_FILE"  # noqa: S105 - a variable's name
#: How long a server that is down, in safe mode, or without space is asked again.
WAIT_S: Final = 60.0
_FILE_BYTES_MAX: Final = 4 * 1024 * 1024
#: Settings that file systems read; others are left behind.
_READ: Final = ("fs.", "dfs.", "hadoop.security.")


@dataclass(frozen=True, slots=True)
class FileSystemOptions:
    """Options of file systems.

    `webhdfs` are URLs of NameNodes, in place of those that `hadoop` (Hadoop's settings) names. `user` is the user of
    WebHDFS, and `token` a delegation token in the form of WebHDFS.
    """

    webhdfs: tuple[str, ...] = ()
    user: str = ""
    token: str = field(default="", repr=False)
    hadoop: Mapping[str, str] = field(default_factory=dict, repr=False)
    wait_s: float = WAIT_S

    @classmethod
    def of(
        cls, spark_conf: Mapping[str, str] | None = None, environment: Mapping[str, str] = os.environ
    ) -> FileSystemOptions:
        """Return the options of the environment and of Spark's settings. Raises FileSystemError for a bad file."""
        webhdfs = tuple(
            filter(None, (url.strip().rstrip("/") for url in environment.get(WEBHDFS_VARIABLE, "").split(",")))
        )
        for url in webhdfs:
            if not url.startswith(("http://", "https://")):
                raise FileSystemError(f"{WEBHDFS_VARIABLE}: '{url}' is no http:// or https:// address of a NameNode")
        settings = _sites(environment.get("HADOOP_CONF_DIR", "")) | hadoop_settings.of_spark(spark_conf or {})
        token_file = environment.get(TOKEN_VARIABLE, "")
        return cls(
            webhdfs,
            environment.get("HADOOP_USER_NAME") or _process_user(),
            _read(token_file, TOKEN_VARIABLE).decode(errors="replace").strip() if token_file else "",
            {name: value for name, value in settings.items() if name.startswith(_READ)},
        )


def _sites(folder: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in hadoop_settings.SITE_FILES if folder else ():
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            continue
        try:
            found |= hadoop_settings.parse_site(_read(path, "HADOOP_CONF_DIR"))
        except hadoop_settings.HadoopSettingsError as error:
            raise FileSystemError(f"{path} cannot be used: {error}") from None
    return found


def _read(path: str, variable: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise FileSystemError(f"{variable}: {path} cannot be read: {error.strerror}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise FileSystemError(f"{variable}: {path} is larger than {_FILE_BYTES_MAX:,} bytes")
    return data


def _process_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container's user without a name
