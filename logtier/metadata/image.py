"""What a broker knows of its cluster: an immutable image of the metadata store, and the cache of the newest one."""

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from headwater.logtier.config import BrokerConfig, Endpoint, TopicConfig
from headwater.logtier.config.quotas import ClientQuota
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.acl_nodes import decode_acl
from headwater.logtier.metadata.quota_nodes import decode_quota
from headwater.logtier.metadata.scram_nodes import decode_scram, decode_unknown_users_key, user_of_node
from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS, collision_key
from headwater.logtier.security.acls import AclBinding
from headwater.logtier.security.scram import ScramCredential

log = logging.getLogger(__name__)

NO_BROKER: Final = -1

DERIVED_MAX: Final = 64
"""Answers kept for one image: versions of clients times sets of topics they ask for; one can have a megabyte."""

_NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker that is alive, and where clients reach it. `epoch` grows with each registration.

    `host` and `port` are for who came through no listener; `endpoints` are the addresses of all of them.
    """

    id: int
    host: str
    port: int
    rack: str | None = None
    epoch: int = 0
    endpoints: tuple[Endpoint, ...] = ()

    def reached_by(self, listener_name: str) -> tuple[str, int]:
        """Host and port for a client that came through a listener: it is to come through that one again."""
        for endpoint in self.endpoints:
            if endpoint.name == listener_name:
                return endpoint.host, endpoint.port
        return self.host, self.port


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition. `leader` is NO_BROKER while there is none; `partition_epoch` grows with each change."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic: its partitions in order, and the configs that were set on it (texts)."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str] = field(default_factory=lambda: _NO_CONFIGS)

    @property
    def is_internal(self) -> bool:
        """Whether brokers keep their own state in it."""
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        """Replicas of its first partition."""
        return len(self.partitions[0].replicas)


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The cluster at one moment. Nothing in it ever changes: a change makes a new image.

    Args:
        topics: Topics by name.
        topic_names: Names by topic id.
        collision_names: Names by their collision key (see `topic_names.collision_key`).
        broker_configs: Dynamic configs by broker id as text, and of all brokers under `<default>`.
        acls: Access control lists by the names of their nodes; the same object as long as none of them changes.
        client_quotas: Quotas of clients, likewise.
        group_configs: Configs by group id; the same object as long as none of them changes.
        scram_credentials: Credentials by user and by mechanism, likewise; not for any log.
        unknown_users_key: The secret by which salts of users are made up that there are not; not for any log either.
    """

    cluster_id: str = ""
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    controller_id: int = NO_BROKER
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[UUID, str] = field(default_factory=dict)
    collision_names: Mapping[str, str] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    acls: Mapping[str, AclBinding] = field(default_factory=dict)
    client_quotas: Mapping[str, ClientQuota] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    scram_credentials: Mapping[str, Mapping[str, ScramCredential]] = field(default_factory=dict, repr=False)
    unknown_users_key: bytes = field(default=b"", repr=False)

    def topic(self, name: str) -> TopicImage | None:
        """The topic of a name."""
        return self.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        """The topic of an id."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def apply(self, changes: Iterable[tuple[str, bytes | None]]) -> "MetadataImage":
        """The image after changes of nodes (path and new data, None where the node is gone); CorruptNodeError.

        Paths that hold no metadata of the image are passed over.
        """
        return _ImageBuilder(self).apply(changes)

    def with_leaders_elected(self, leader_epoch: int) -> "MetadataImage":
        """The image after each partition's leader has been elected again."""
        topics = {
            name: replace(
                topic,
                partitions=tuple(
                    replace(partition, leader_epoch=leader_epoch, partition_epoch=leader_epoch)
                    for partition in topic.partitions
                ),
            )
            for name, topic in self.topics.items()
        }
        return replace(self, topics=topics)


class _ImageBuilder:
    """The fields of an image that changes replace: mappings are copied when the first change comes to them."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._changed: dict[str, Any] = {}
        # A topic's configs may come before the topic itself.
        self._topic_configs: dict[str, Mapping[str, str]] = {}

    def apply(self, changes: Iterable[tuple[str, bytes | None]]) -> MetadataImage:
        for path, data in changes:
            parent, _, name = path.rpartition("/")
            follow = _FOLLOWS_BELOW.get(parent) or _FOLLOWS_AT.get(path)
            if follow is not None:
                follow(self, path, name, data)
        return replace(self._image, **self._changed)

    def set(self, field_name: str, value: object) -> None:
        self._changed[field_name] = value

    def mapping(self, field_name: str) -> dict[Any, Any]:
        found: dict[Any, Any] | None = self._changed.get(field_name)
        if found is None:
            found = self._changed[field_name] = dict(getattr(self._image, field_name))
        return found

    def topic(self, path: str, name: str, data: bytes | None) -> None:
        topics: dict[str, TopicImage] = self.mapping("topics")
        topic_names, collision_names = self.mapping("topic_names"), self.mapping("collision_names")
        old = topics.get(name)
        if data is None:
            if old is not None:
                del topics[name], topic_names[old.topic_id], collision_names[collision_key(name)]
            return
        topic_id, replicas = paths.decode_topic(path, data)
        configs = self._topic_configs.pop(name, None)
        if old is not None and old.topic_id == topic_id:
            # Partitions that were there keep their state; those that came get their first one.
            partitions = tuple(
                old.partitions[index]
                if index < len(old.partitions) and old.partitions[index].replicas == assigned
                else first_partition_state(assigned)
                for index, assigned in enumerate(replicas)
            )
            configs = old.configs if configs is None else configs
        else:
            if old is not None:
                del topic_names[old.topic_id]
            partitions = tuple(first_partition_state(assigned) for assigned in replicas)
        topics[name] = TopicImage(name, topic_id, partitions, _NO_CONFIGS if configs is None else configs)
        topic_names[topic_id] = name
        collision_names[collision_key(name)] = name

    def topic_config(self, path: str, name: str, data: bytes | None) -> None:
        configs = _NO_CONFIGS if data is None else _decode_configs(path, name, data)
        topics: dict[str, TopicImage] = self.mapping("topics")
        topic = topics.get(name)
        if topic is None:
            self._topic_configs[name] = configs
        else:
            topics[name] = replace(topic, configs=configs)


_Follow = Callable[[_ImageBuilder, str, str, bytes | None], None]
"""Takes a change into an image: of a path, the last name in it, and the node's data; None: it is gone."""


def _entry(field_name: str, key: Callable[[str], Hashable], decode: Callable[[str, str, bytes], object]) -> _Follow:
    """Each node is one entry of a mapping: at the `key` for its name, the value that `decode` makes of it."""

    def follow(builder: _ImageBuilder, path: str, name: str, data: bytes | None) -> None:
        if data is None:
            builder.mapping(field_name).pop(key(name), None)
        else:
            builder.mapping(field_name)[key(name)] = decode(path, name, data)

    return follow


def _value(field_name: str, decode: Callable[[str, bytes], object], gone: object = None) -> _Follow:
    """The node is one value, which is `gone` when there is no node; without `gone` it stays what it was."""

    def follow(builder: _ImageBuilder, path: str, _: str, data: bytes | None) -> None:
        if data is not None:
            builder.set(field_name, decode(path, data))
        elif gone is not None:
            builder.set(field_name, gone)

    return follow


def _decode_configs(path: str, _: str, data: bytes) -> Mapping[str, str]:
    return MappingProxyType(paths.decode_config(path, data))


#: What follows from a change of a node whose parent this is.
_FOLLOWS_BELOW: Final[Mapping[str, _Follow]] = {
    paths.TOPICS: _ImageBuilder.topic,
    paths.TOPIC_CONFIGS: _ImageBuilder.topic_config,
    paths.BROKER_IDS: _entry(
        "brokers", int, lambda path, name, data: BrokerRegistration(int(name), *paths.decode_broker(path, data))
    ),
    paths.BROKER_CONFIGS: _entry("broker_configs", str, _decode_configs),
    paths.GROUP_CONFIGS: _entry("group_configs", paths.group_of_config, _decode_configs),
    paths.ACLS: _entry("acls", str, lambda path, _, data: decode_acl(path, data)),
    paths.CLIENT_QUOTAS: _entry("client_quotas", str, lambda path, _, data: decode_quota(path, data)),
    paths.SCRAM_USERS: _entry(
        "scram_credentials", user_of_node, lambda path, _, data: MappingProxyType(decode_scram(path, data))
    ),
}
#: What follows from a change of this very node.
_FOLLOWS_AT: Final[Mapping[str, _Follow]] = {
    paths.CONTROLLER: _value("controller_id", lambda _, data: paths.decode_controller(data), gone=NO_BROKER),
    paths.CLUSTER_ID: _value("cluster_id", lambda _, data: paths.decode_cluster_id(data)),
    paths.UNKNOWN_USERS_KEY: _value("unknown_users_key", decode_unknown_users_key),
}


def first_partition_state(replicas: tuple[int, ...]) -> PartitionImage:
    """The state of a partition that nothing has happened to: its preferred replica leads and all are in sync."""
    return PartitionImage(leader=replicas[0], leader_epoch=0, partition_epoch=0, replicas=replicas, isr=replicas)


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """What became of the topics between two images.

    A topic that was deleted and created again under its name is in `deleted` (the old one) and in `created` (the new).
    `changed` holds the new image of each topic whose partitions or resolved configs are not what they were.
    """

    old: MetadataImage
    new: MetadataImage
    created: tuple[TopicImage, ...]
    deleted: tuple[TopicImage, ...]
    changed: tuple[TopicImage, ...]


def metadata_delta(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """Compare two images: topics are compared by identity first, so an unchanged one costs next to nothing."""
    created, changed = [], []
    # A dynamic config of the broker is the default of every topic.
    defaults_changed = old.broker_configs != new.broker_configs
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        if before is None or before.topic_id != topic.topic_id:
            created.append(topic)
        elif defaults_changed or (before is not topic and before != topic):
            changed.append(topic)
    deleted = [topic for topic in old.topics.values() if topic.topic_id not in new.topic_names]
    return MetadataDelta(old, new, tuple(created), tuple(deleted), tuple(changed))


class MetadataCache:
    """The newest image, and who wants to know of a newer one.

    Invariant: when `publish` returns, every subscriber has seen the change. The controller calls it; everybody else
    reads.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._static_config = config
        #: This broker's configs with its dynamic ones applied, but for those that do not fit the static ones: what
        #: everybody goes by. Read only; a change of the image replaces it.
        self.config = config
        self._unfit: Mapping[str, str] = {}
        self._image = MetadataImage()
        self._subscribers: list[Callable[[MetadataDelta], None]] = []
        self._preparers: list[Callable[[MetadataDelta], Awaitable[None]]] = []
        self._derived: dict[Hashable, bytes] = {}

    @property
    def image(self) -> MetadataImage:
        """The cluster as it is known now."""
        return self._image

    @property
    def static_config(self) -> BrokerConfig:
        """This broker's configs as it was started with them: for who tells or checks what is dynamic."""
        return self._static_config

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        """A topic's configs: its own, else this broker's dynamic and static ones, else the defaults."""
        return TopicConfig.resolve(topic.configs, self.config)

    def derived(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Bytes that depend on the image alone (an encoded response), made once for each image and key."""
        known = self._derived.get(key)
        if known is None:
            if len(self._derived) >= DERIVED_MAX:
                self._derived.clear()
            known = self._derived[key] = make()
        return known

    def subscribe(self, callback: Callable[[MetadataDelta], None]) -> None:
        """Call back, synchronously and in order of subscription, with every change from now on."""
        self._subscribers.append(callback)

    def prepare_with(self, prepare: Callable[[MetadataDelta], Awaitable[None]]) -> None:
        """Have a change waited for by whoever has much to do for it, before it is seen by anybody (see `advance`)."""
        self._preparers.append(prepare)

    async def advance(self, image: MetadataImage) -> None:
        """As `publish`, once everything is prepared for it. Nobody publishes another image meanwhile.

        What cannot be prepared the subscribers do without.
        """
        if self._preparers:
            delta = metadata_delta(self._image, image)
            for prepare in self._preparers:
                try:
                    await prepare(delta)
                except Exception:
                    # The change is durable: whatever is wrong, everybody has to know of it.
                    log.exception("a change of metadata could not be prepared")
        self.publish(image)

    def publish(self, image: MetadataImage) -> None:
        """Replace the image and tell the subscribers.

        A subscriber that raises is logged and does not keep the others from knowing; its error is raised at the end.
        """
        delta = metadata_delta(self._image, image)
        dynamic = dynamic_broker_configs(image, self._static_config.node_id)
        if dynamic != dynamic_broker_configs(self._image, self._static_config.node_id):
            self._apply_dynamic(dynamic)
        self._image = image
        self._derived.clear()
        first_error: Exception | None = None
        for subscriber in self._subscribers:
            try:
                subscriber(delta)
            except Exception as error:
                log.exception("a subscriber failed to take over a change of metadata")
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def _apply_dynamic(self, dynamic: Mapping[str, str]) -> None:
        self.config, unfit = self._static_config.with_fitting(dynamic)
        # It fitted when it was stored: the static configs are others since.
        for name, reason in unfit.items():
            if self._unfit.get(name) != reason:
                log.error("the dynamic config %s is not applied, the broker goes on without it: %s", name, reason)
        self._unfit = unfit


def dynamic_broker_configs(image: MetadataImage, node_id: int) -> dict[str, str]:
    """The dynamic configs that hold for a broker: those of all brokers, overridden by its own."""
    return {
        **image.broker_configs.get(paths.CLUSTER_DEFAULT, _NO_CONFIGS),
        **image.broker_configs.get(str(node_id), _NO_CONFIGS),
    }
