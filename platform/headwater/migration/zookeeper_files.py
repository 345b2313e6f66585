"""Writes nodes into the files of a ZooKeeper: a server runs for as long as that takes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Sequence
from typing import Final

from headwater.cluster_folder import write_secret
from headwater.folder_lock import FolderInUseError, lock_folder
from headwater.java_runtime import find_java
from headwater.logtier.config import ConfigError
from headwater.logtier.metadata.node_copy import copy_nodes
from headwater.logtier.metadata.store import Create, MetadataStoreError
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
from headwater.logtier.metadata.zookeeper.store import ZooKeeperStore
from headwater.migration.one_node_folder import MigrationError
from headwater.zookeeper_server import (
    ZooKeeperError,
    ZooKeeperPlace,
    ZooKeeperProcess,
    free_port,
    java_command,
    server_logins,
    spark_jars,
)

HOST: Final = "127.0.0.1"
USERNAME: Final = "headwater"
PASSWORD_BYTES: Final = 16
#: The server of a command that was killed ends by itself, when it notices.
END_S: Final = 30.0
POLL_S: Final = 0.1


class ServedZooKeeperFiles:
    """The files of a ZooKeeper, written by a server that runs for as long as that takes."""

    def __init__(self, start_timeout_ms: int) -> None:
        """`start_timeout_ms` bounds the start of the server and the login."""
        self._start_timeout_ms = start_timeout_ms

    def check(self) -> None:
        """Check that there is a Java, and that the jars of pyspark have a ZooKeeper; MigrationError."""
        java = find_java()
        try:
            if java is None:
                raise ZooKeeperError("there is no java; `headwater doctor` says how to install one")
            java_command(java, spark_jars(), "")
        except ZooKeeperError as error:
            raise MigrationError(f"a cluster needs ZooKeeper: {error}") from None

    def write(self, creates: Sequence[Create], folder: str) -> None:
        """Start a server in a new folder, create the nodes, read them back, and stop it; then sync its files.

        Nobody else can log in to the server meanwhile.

        Raises:
            MigrationError: The server does not start, or the nodes do not come out as they were given.
            OSError: The folder cannot be written.
        """
        password = secrets.token_hex(PASSWORD_BYTES)
        jaas = f"{folder}.jaas"
        os.makedirs(folder)
        write_secret(jaas, server_logins(USERNAME, password))
        place = ZooKeeperPlace(os.path.abspath(folder), HOST, free_port(HOST), os.path.abspath(jaas))
        try:
            self._serve(place, password, creates)
        except (ConfigError, MetadataStoreError, ZooKeeperError) as error:
            raise MigrationError(f"the metadata cannot be copied into a ZooKeeper: {error}") from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(jaas)
        _sync_tree(folder)

    def _serve(self, place: ZooKeeperPlace, password: str, creates: Sequence[Create]) -> None:
        settings = ZooKeeperSettings(
            f"{HOST}:{place.port}",
            connection_timeout_ms=self._start_timeout_ms,
            username=USERNAME,
            password=password,
        )
        server = ZooKeeperProcess(place)
        server.start()
        try:
            server.wait_ready(self._start_timeout_ms / 1000)
            asyncio.run(_write(settings, creates))
        finally:
            server.terminate()
            server.wait()
            server.release()

    def await_end(self, folder: str) -> None:
        """Wait until no server uses a folder: that of a command that was killed ends by itself; MigrationError."""
        deadline_s = time.monotonic() + END_S
        while os.path.isdir(folder):
            try:
                os.close(lock_folder(folder))
            except FolderInUseError as error:
                if time.monotonic() >= deadline_s:
                    raise MigrationError(str(error)) from None
                time.sleep(POLL_S)
            else:
                return


async def _write(settings: ZooKeeperSettings, creates: Sequence[Create]) -> None:
    store = ZooKeeperStore(settings)
    await store.start()
    try:
        await copy_nodes(store, creates)
    finally:
        await store.close()


def _sync_tree(folder: str) -> None:
    """Wait until all files of a folder, and their names, are on the device."""
    for path, _, names in os.walk(folder, topdown=False):
        for each in [*(os.path.join(path, name) for name in names), path]:
            descriptor = os.open(each, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
