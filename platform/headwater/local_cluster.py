"""A cluster on this machine: ZooKeeper, several brokers and the REST API, each in its own process."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from headwater.cluster_folder import (
    JAAS_FILE,
    ZOOKEEPER_FOLDER,
    ClusterFolderError,
    broker_folder,
    broker_ids,
    check_folder,
    end_newness,
    note_start,
    prepare_folder,
    write_secret,
    writing,
)
from headwater.folder_lock import FolderInUseError, lock_folder
from headwater.process_list import remove_process_list
from headwater.services import NO_PORT, LocalProcesses, NodeStartError, child_command, join_address, metrics_url_of
from headwater.settings import Settings
from headwater.supervisor import Child, ChildError
from headwater.zookeeper_server import server_logins

#: Short, because all processes share the machine: only a frozen or silent one is noticed by its session.
SESSION_TIMEOUT_MS: Final = 6_000
COPIES: Final = 3
#: The login of the brokers at ZooKeeper.
USERNAME: Final = "headwater"
PASSWORD_BYTES: Final = 16


def cluster_defaults(brokers: int) -> dict[str, str]:
    """Return the properties of each broker that a user's file can replace.

    >>> cluster_defaults(3)["min.insync.replicas"], cluster_defaults(2)["min.insync.replicas"]
    ('2', '1')
    """
    factor = min(COPIES, brokers)
    least = max(1, factor - 1)
    return {
        "default.replication.factor": str(factor),
        "min.insync.replicas": str(least),
        "offsets.topic.replication.factor": str(factor),
        "transaction.state.log.replication.factor": str(factor),
        "transaction.state.log.min.isr": str(least),
        "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    }


def _lock_folder(data_dir: str) -> int:
    """Make and lock the folder."""
    try:
        with writing(data_dir):
            os.makedirs(data_dir, exist_ok=True)
            return lock_folder(data_dir)
    except FolderInUseError as error:
        raise ClusterFolderError(str(error)) from None


class LocalCluster(LocalProcesses):
    """A cluster on this machine: `start` blocks until all processes are ready, `stop` ends them.

    A process that dies is restarted on its previous ports, however often: the others serve on meanwhile. Once all
    brokers of a folder have been ready, the same holds for one that cannot start, such as one with a damaged disk.
    """

    def __init__(
        self,
        data_dir: str,
        brokers: int,
        kafka_port: int = 0,
        http_port: int = 0,
        host: str = "127.0.0.1",
        *,
        metrics_port: int = NO_PORT,
        settings: Settings | None = None,
        report: Callable[[str], None] | None = None,
        own_properties: Mapping[str, object] | None = None,
    ) -> None:
        """Prepare a cluster with its data below `data_dir`.

        Args:
            kafka_port: Port of the first broker; those of the others follow. 0 selects free ports.
            metrics_port: The same of the brokers' metrics; NO_PORT disables them.
            own_properties: Those of the user's `broker_config`, which replace the defaults of a cluster.

        Raises:
            ClusterFolderError: The layout of the folder is damaged.
            ClusterPortError: Two processes would have the same port, or one of them a port that does not exist.
        """
        from headwater.cluster_ports import fixed_ports, following  # a node alone does without

        super().__init__(data_dir, settings, report)
        self._count = brokers
        self._lock: int | None = None
        self._host = host
        ids = broker_ids(data_dir, brokers)
        self._ports = fixed_ports(ids, kafka_port, http_port, metrics_port)
        self._zookeeper_address = ""
        #: Another one at each start: only the brokers, which are started anew, have a use for it.
        self._password = secrets.token_hex(PASSWORD_BYTES)
        self._properties = {**cluster_defaults(brokers), **(own_properties or {})}

        def zookeeper_command(known: Mapping[str, Any] | None) -> list[str]:
            port = 0 if known is None else int(known["port"])
            folder = os.path.join(data_dir, ZOOKEEPER_FOLDER)
            place = ["--data", folder, "--host", "127.0.0.1", "--port", str(port)]
            return child_command("zookeeper", *place, "--jaas", self._path(JAAS_FILE))

        def broker_command(place: int, node_id: int, known: Mapping[str, Any] | None) -> list[str]:
            port = following(kafka_port, place) if known is None else int(known["port"])
            command = child_command("broker", "--config", self._path(f"broker-{node_id}.yaml"))
            command += ["--data", self._path(broker_folder(node_id)), "--kafka-port", str(port), "--host", host]
            if metrics_port != NO_PORT:
                metrics = following(metrics_port, place) if known is None else int(known["metrics_port"])
                command += ["--set", f"prometheus.port={metrics}", "--set", f"prometheus.host={host}"]
            return command

        self._zookeeper = self._add("zookeeper", "ZooKeeper", zookeeper_command)
        self._brokers = {
            node_id: self._add(f"broker-{node_id}", f"broker {node_id}", partial(broker_command, place, node_id))
            for place, node_id in enumerate(ids)
        }
        self._api = self._add_api(http_port, host)

    def start(self) -> None:
        """Start all processes and wait until all are ready.

        Raises:
            NodeStartError: A port is in use, the folder is for another number of brokers, ...; no process remains.
        """
        check_folder(self._data_dir, self._count)
        # Before anything is written: the processes of a running cluster need its login.
        self._lock = _lock_folder(self._data_dir)
        try:
            self._check_ports()
            is_new = prepare_folder(self._data_dir, self._count)
            self._write_secret(JAAS_FILE, server_logins(USERNAME, self._password))
            self._zookeeper.start()
            self._api.start()
            found = self._zookeeper.wait_ready(self.end_wait)
            self._zookeeper_address = join_address(str(found["host"]), int(found["port"]))
            note_start(self._data_dir)
            for node_id, broker in self._brokers.items():
                self._write_secret(f"broker-{node_id}.yaml", self._broker_config(node_id))
                broker.start()
            self._await_brokers(is_new=is_new)
            if is_new:
                end_newness(self._data_dir)
            self._api.tell({"bootstrap_servers": self.bootstrap_servers})
            self._api.wait_ready(self.end_wait)
            self._begin_archive(self.bootstrap_servers)
            self._begin_sql(self.bootstrap_servers)
        except ChildError as error:
            self.stop()
            raise NodeStartError(str(error)) from None
        except BaseException:
            self.stop()
            raise

    def _check_ports(self) -> None:
        from headwater.cluster_ports import port_in_use

        # The processes find this out as well, but a broker alone would be tried again and again.
        if (taken := port_in_use(self._host, self._ports)) is not None:
            raise NodeStartError(
                f"{join_address(self._host, taken.port)}, {taken.use}, is in use; stop the process that listens there, "
                f"or choose another {taken.option}"
            )

    def _await_brokers(self, *, is_new: bool) -> None:
        """Wait until the brokers are ready; those that fail are started again and again if one is ready.

        Raises:
            ChildError: None is ready; the properties, which all share, are wrong; or the folder is new, and its user
                has no data to reach meanwhile.
        """
        failures: dict[Child, ChildError] = {}
        for broker in self._brokers.values():
            try:
                broker.wait_ready(self.end_wait)
            except ChildError as error:
                failures[broker] = error
                if is_new or error.is_user_error:
                    raise
        if len(failures) == self._count:
            raise next(iter(failures.values()))
        for broker, failure in failures.items():
            broker.keep_starting(failure, self.end_wait)

    def _broker_config(self, node_id: int) -> str:
        """Return the file of a broker's properties; JSON is YAML."""
        properties = {
            **self._properties,
            "node.id": node_id,
            "zookeeper.connect": self._zookeeper_address,
            "zookeeper.sasl.jaas.config": (
                "org.apache.zookeeper.server.auth.DigestLoginModule required "
                f'username="{USERNAME}" password="{self._password}";'
            ),
        }
        return json.dumps(properties, indent=2) + "\n"

    def _path(self, name: str) -> str:
        return os.path.join(self._data_dir, name)

    def _write_secret(self, name: str, text: str) -> None:
        path = self._path(name)
        with writing(path):
            write_secret(path, text)

    def stop(self) -> None:
        """Stop all processes cleanly: SQL, archiver, API, the brokers, at last ZooKeeper. May be called twice."""
        self._end_sql()
        self._end_archive()
        children = [self._api, *self._brokers.values(), self._zookeeper]
        for each in children:
            each.expect_end()
        self._api.stop()
        stopping = [threading.Thread(target=broker.stop) for broker in self._brokers.values()]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()
        self._zookeeper.stop()
        remove_process_list(self._data_dir)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the brokers that have been ready."""
        return ",".join(self._address(broker) for broker in self._brokers.values() if broker.addresses is not None)

    @property
    def metrics_url(self) -> str | None:
        """URLs of the brokers' metrics for Prometheus, separated by commas; None if disabled."""
        return ",".join(filter(None, map(metrics_url_of, self._brokers.values()))) or None
