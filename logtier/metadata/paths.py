"""The nodes of the metadata store: the subset of Kafka's ZooKeeper paths and JSON that the brokers use.

| path | data |
|---|---|
| `/cluster/id` | `{"version":"1","id":...}` |
| `/brokers/ids/<id>` (ephemeral) | `{"version":5,"host":...,"port":...,"rack":...,"endpoints":[...],...}` |
| `/brokers/known/<id>` | the last registration, with `"epoch"` (its node's czxid) and `"alive"` |
| `/brokers/topics/<name>`, `/brokers/topics/<name>/<chunk>` | see `topic_nodes` |
| `/config/topics/<name>` | `{"version":1,"config":{...}}`: overrides; absent without any |
| `/config/brokers/<id>`, `/config/brokers/<default>` | the same for brokers |
| `/config/groups/<id>` | the same for groups, whose ids are percent-encoded |
| `/controller` (ephemeral) | `{"version":2,"brokerid":...,"timestamp":...}` |
| `/features` | `{"version":1,"epoch":...,"levels":{...}}`: the finalized feature levels; `epoch` counts their changes |
| `/controller_epoch` | the number of elections so far; its version fences every write of a controller |
| `/deleted/<topic id>` | when the topic was deleted, in wall-clock ms; a tombstone for some days |
| `/latest_producer_id_block` | `{"version":1,"broker":...,"block_start":"0","block_end":"999"}` |
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

import orjson

from headwater.logtier.config import ConfigError, Endpoint
from headwater.logtier.config.definition import LONG_MAX
from headwater.logtier.config.listeners import parse_listener
from headwater.logtier.protocol.features import FinalizedFeatures

CLUSTER: Final = "/cluster"
CLUSTER_ID: Final = "/cluster/id"
UNKNOWN_USERS_KEY: Final = "/cluster/unknown_users_key"
BROKERS: Final = "/brokers"
BROKER_IDS: Final = "/brokers/ids"
KNOWN_BROKERS: Final = "/brokers/known"
TOPICS: Final = "/brokers/topics"
CONFIG: Final = "/config"
TOPIC_CONFIGS: Final = "/config/topics"
BROKER_CONFIGS: Final = "/config/brokers"
GROUP_CONFIGS: Final = "/config/groups"
ACLS: Final = "/kafka-acl"
CLIENT_QUOTAS: Final = "/config/client_quotas"
SCRAM_USERS: Final = "/config/scram"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
FEATURES: Final = "/features"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"

DELETED_TOPICS: Final = "/deleted"
PERSISTENT_PARENTS: Final = (
    CLUSTER,
    BROKERS,
    BROKER_IDS,
    KNOWN_BROKERS,
    TOPICS,
    CONFIG,
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    ACLS,
    CLIENT_QUOTAS,
    SCRAM_USERS,
    DELETED_TOPICS,
)
"""Nodes created first, parents before children."""

CLUSTER_DEFAULT: Final = "<default>"
"""The name of the defaults of all brokers in `/config/brokers`."""


class CorruptNodeError(Exception):
    """The data of a node is invalid for its path: written by another program or a later version.

    `remedy` is what an administrator can do.
    """

    def __init__(
        self,
        path: str,
        data: bytes,
        remedy: str = "restore the node from a backup of the metadata, or use the release that wrote it",
    ) -> None:
        super().__init__(f"the metadata node {path} has data that this version cannot read: {data[:200]!r}")
        self.remedy = remedy


def encode_cluster_id(cluster_id: str) -> bytes:
    """Data of `/cluster/id`."""
    return orjson.dumps({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    """Return the cluster id from `/cluster/id`."""
    try:
        return str(_fields(CLUSTER_ID, data)["id"])
    except KeyError:
        raise CorruptNodeError(CLUSTER_ID, data) from None


def broker_path(broker_id: int) -> str:
    """Path of a broker's registration, which ends with its session."""
    return f"{BROKER_IDS}/{broker_id}"


def deleted_topic_path(topic_id: UUID) -> str:
    """Path of the tombstone of a deleted topic."""
    return f"{DELETED_TOPICS}/{topic_id}"


def encode_deleted_topic(now_ms: int) -> bytes:
    """Data of a tombstone: when the topic was deleted, in wall-clock ms."""
    return b"%d" % now_ms


def decode_deleted_topic(path: str, data: bytes) -> int:
    """Return when the topic was deleted, in wall-clock ms; CorruptNodeError."""
    if not data.isdigit():
        raise CorruptNodeError(path, data)
    return int(data)


def known_broker_path(broker_id: int) -> str:
    """Path of what the controller knows of a broker."""
    return f"{KNOWN_BROKERS}/{broker_id}"


class BrokerProcess(NamedTuple):
    """The process of a broker behind a registration.

    Attributes:
        directory_ids: Id and path of each log folder, which the process has locked: a copy has another path.
        boot_id: The boot of its machine; empty if unknown.
        previous_epoch: The broker epoch in which the process before closed the log folders cleanly, or in which this
            process was registered before it lost its session; -1 if its logs may lack records that they had (KIP-966).
        full_directories: Those of the log folders that cannot be appended to at present, for want of space.
        failed_directories: Log folders that the process had, and that have failed since: which writes reached their
            devices is not known.
        features: Name, lowest and highest level of each feature that its release supports; empty of earlier releases.
    """

    directory_ids: tuple[str, ...] = ()
    boot_id: str = ""
    previous_epoch: int = -1
    full_directories: tuple[str, ...] = ()
    failed_directories: tuple[str, ...] = ()
    features: tuple[tuple[str, int, int], ...] = ()

    def has_online(self, directory_id: str) -> bool:
        """Whether a log folder can be used; without an id, which brokers of one folder do not report, any of them."""
        if not directory_id or not (self.directory_ids or self.failed_directories):
            return bool(self.directory_ids) or not self.failed_directories
        return directory_id in _ids(self.directory_ids)

    def has_failed(self, directory_id: str) -> bool:
        """Whether a log folder has failed while the process had it; without an id, whether any has."""
        return directory_id in _ids(self.failed_directories) if directory_id else bool(self.failed_directories)

    def with_folders(self, online: tuple[str, ...], full: tuple[str, ...]) -> "BrokerProcess":
        """Return the process after folders have failed, or are full, or have room again."""
        failed = [each for each in self.directory_ids if each not in online]
        return self._replace(
            directory_ids=online, full_directories=full, failed_directories=(*self.failed_directories, *failed)
        )

    def has_room(self, directory_id: str) -> bool:
        """Whether a log folder can be appended to; without an id, whether any can."""
        if directory_id:
            return directory_id not in _ids(self.full_directories)
        return not self.full_directories or len(self.full_directories) < len(self.directory_ids)

    def replaces(self, other: "BrokerProcess") -> bool:
        """Whether the other process has ended: this one has locked a log folder of it, on the same machine."""
        is_same_boot = self.boot_id != "" and self.boot_id == other.boot_id
        return is_same_boot and not set(self.directory_ids).isdisjoint(other.directory_ids)

    def kept_records_of(self, other: "BrokerProcess") -> bool:
        """Whether this process has every record that another one of the same broker had written.

        What a killed process wrote is in the page cache, which lasts as long as the boot of the machine; a folder of it
        that is missing or failed is not among this process's.
        """
        is_same_boot = self.boot_id != "" and self.boot_id == other.boot_id
        return is_same_boot and set(self.directory_ids).issuperset(other.directory_ids)


def _ids(folders: Sequence[str]) -> set[str]:
    return {each.partition(" ")[0] for each in folders}


NO_PROCESS: Final = BrokerProcess()
"""The process of a single node, whose registration nobody else reads."""


def encode_broker(
    host: str, port: int, rack: str | None, endpoints: Sequence[Endpoint] = (), process: BrokerProcess = NO_PROCESS
) -> bytes:
    """Data of a broker's registration; `endpoints` are the addresses of its listeners."""
    return orjson.dumps(_broker_fields(host, port, rack, endpoints, process))


def encode_known_broker(
    host: str,
    port: int,
    rack: str | None,
    epoch: int,
    endpoints: Sequence[Endpoint] = (),
    *,
    is_alive: bool = True,
    process: BrokerProcess = NO_PROCESS,
) -> bytes:
    """Data of a known broker: its last registration with its epoch, and whether it is alive."""
    return orjson.dumps(_broker_fields(host, port, rack, endpoints, process) | {"epoch": epoch, "alive": is_alive})


def _broker_fields(
    host: str, port: int, rack: str | None, endpoints: Sequence[Endpoint], process: BrokerProcess
) -> dict[str, Any]:
    fields = {
        "version": 5,
        "host": host,
        "port": port,
        "rack": rack,
        "endpoints": [str(endpoint) for endpoint in endpoints],
        "listener_security_protocol_map": {endpoint.name: endpoint.protocol for endpoint in endpoints},
    }
    return fields if process == NO_PROCESS else fields | process._asdict()


BrokerFields = tuple[str, int, str | None, int, tuple[Endpoint, ...], bool, BrokerProcess]
"""Host, port, rack, epoch and listener addresses of a broker, whether it is alive, and its process."""


def decode_broker(path: str, data: bytes, epoch: int) -> BrokerFields:
    """Return the fields of a broker that is registered now, in the epoch of its node; CorruptNodeError."""
    return _decode_broker(path, data, _fields(path, data) | {"epoch": epoch, "alive": True})


def decode_known_broker(path: str, data: bytes) -> BrokerFields:
    """Return the fields of a known broker; CorruptNodeError."""
    return _decode_broker(path, data, _fields(path, data))


def _decode_broker(path: str, data: bytes, fields: Mapping[str, Any]) -> BrokerFields:
    protocols = fields.get("listener_security_protocol_map", {})
    try:
        endpoints = tuple(parse_listener(path, text, protocols) for text in fields.get("endpoints", ()))
        process = NO_PROCESS
        if "boot_id" in fields:
            process = BrokerProcess(
                tuple(fields["directory_ids"]),
                fields["boot_id"],
                fields["previous_epoch"],
                tuple(fields.get("full_directories", ())),
                tuple(fields.get("failed_directories", ())),
                tuple((str(name), int(first), int(last)) for name, first, last in fields.get("features", ())),
            )
        return fields["host"], fields["port"], fields["rack"], fields["epoch"], endpoints, fields["alive"], process
    except (AttributeError, ConfigError, KeyError, TypeError, ValueError):
        raise CorruptNodeError(path, data) from None


def topic_path(name: str) -> str:
    """Path of a topic."""
    return f"{TOPICS}/{name}"


def topic_config_path(name: str) -> str:
    """Path of a topic's overrides."""
    return f"{TOPIC_CONFIGS}/{name}"


def broker_config_path(name: str) -> str:
    """Path of a broker's dynamic configs (`<default>`: of all brokers)."""
    return f"{BROKER_CONFIGS}/{name}"


def group_config_path(name: str) -> str:
    """Path of a group's configs; the group id is percent-encoded, since it may have any characters.

    >>> group_config_path("a/b")
    '/config/groups/a%2Fb'
    """
    return f"{GROUP_CONFIGS}/{quote(name, safe='')}"


def group_of_config(node: str) -> str:
    """Return the group of a node in `/config/groups`."""
    return unquote(node)


def encode_config(config: Mapping[str, str]) -> bytes:
    """Data of a config node."""
    return orjson.dumps({"version": 1, "config": dict(config)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """Return the overrides of a config node."""
    config = _fields(path, data).get("config")
    if not isinstance(config, dict) or not all(isinstance(value, str) for value in config.values()):
        raise CorruptNodeError(path, data)
    return config


def encode_controller(broker_id: int, now_ms: int) -> bytes:
    """Data of `/controller`."""
    return orjson.dumps({"version": 2, "brokerid": broker_id, "timestamp": str(now_ms)})


def decode_controller(data: bytes) -> int:
    """Return the broker id of the controller."""
    try:
        return int(_fields(CONTROLLER, data)["brokerid"])
    except (KeyError, TypeError, ValueError):
        raise CorruptNodeError(CONTROLLER, data) from None


def decode_controller_epoch(data: bytes) -> int:
    """Return the epoch from `/controller_epoch`."""
    try:
        return int(data)
    except ValueError:
        raise CorruptNodeError(CONTROLLER_EPOCH, data) from None


def encode_features(features: FinalizedFeatures) -> bytes:
    """Data of `/features`."""
    return orjson.dumps({"version": 1, "epoch": features.epoch, "levels": dict(features.levels)})


def decode_features(path: str, data: bytes) -> FinalizedFeatures:
    """Return the finalized levels; CorruptNodeError.

    >>> decode_features(FEATURES, encode_features(FinalizedFeatures(3, {"group.version": 1})))
    FinalizedFeatures(epoch=3, levels={'group.version': 1})
    """
    fields = _fields(path, data)
    epoch, levels = fields.get("epoch"), fields.get("levels")
    if not isinstance(epoch, int) or not isinstance(levels, dict):
        raise CorruptNodeError(path, data)
    if not all(isinstance(level, int) and level > 0 for level in levels.values()):
        raise CorruptNodeError(path, data)
    return FinalizedFeatures(epoch, levels)


def encode_producer_id_block(broker_id: int, block: range) -> bytes:
    """Data of `/latest_producer_id_block`."""
    return orjson.dumps(
        {"version": 1, "broker": broker_id, "block_start": str(block.start), "block_end": str(block.stop - 1)}
    )


def decode_producer_id_block(data: bytes) -> range:
    """Return the last allocated block of producer ids; CorruptNodeError.

    >>> decode_producer_id_block(encode_producer_id_block(1, range(1000)))
    range(0, 1000)
    """
    try:
        fields = _fields(PRODUCER_ID_BLOCK, data)
        first, last = int(fields["block_start"]), int(fields["block_end"])
        if not 0 <= first <= last <= LONG_MAX:
            raise ValueError(first, last)
    except (CorruptNodeError, KeyError, OverflowError, TypeError, ValueError):
        # An old block would give ids out twice, and so would a new beginning.
        remedy = (
            "write a block above every producer id in use to it, such as "
            '{"version":1,"broker":1,"block_start":"1000000000","block_end":"1000000999"}; do not delete it'
        )
        raise CorruptNodeError(PRODUCER_ID_BLOCK, data, remedy) from None
    return range(first, last + 1)


def _fields(path: str, data: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise CorruptNodeError(path, data) from None
    if not isinstance(fields, dict):
        raise CorruptNodeError(path, data)
    return fields
