"""An immutable image of the metadata store, and the cache of the newest image."""

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
from headwater.logtier.metadata.topic_nodes import (
    NO_BROKER,
    PartitionImage,
    decode_chunk,
    decode_topic,
    partitions_with,
)
from headwater.logtier.protocol.features import FIRST_FEATURES, FinalizedFeatures
from headwater.logtier.security.acls import AclBinding
from headwater.logtier.security.scram import ScramCredential

log = logging.getLogger(__name__)

DERIVED_MAX: Final = 64
"""Cached responses per image: client versions times requested sets of topics; each may have a megabyte."""

_BELOW_TOPICS: Final = f"{paths.TOPICS}/"

_NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker with its addresses. `epoch` grows with each registration.

    `host` and `port` are for clients without a known listener; `endpoints` has the addresses of all listeners.
    """

    id: int
    host: str
    port: int
    rack: str | None = None
    epoch: int = 0
    endpoints: tuple[Endpoint, ...] = ()
    is_alive: bool = True
    process: paths.BrokerProcess = paths.NO_PROCESS

    def has_all_records_of(self, before: "BrokerRegistration | None", directory_id: str) -> bool:
        """Whether a broker that returns has every record that it had in a log folder: it may lead as before (KIP-966).

        Its folders were closed in its last epoch, or the process was only killed. After the end of the machine records
        that were not flushed may be gone, and whatever a folder had that failed.
        """
        if before is None or before.process.has_failed(directory_id):
            return False
        return before.epoch == self.process.previous_epoch or self.process.kept_records_of(before.process)

    @property
    def inter_broker_listener(self) -> str | None:
        """The listener at `host` and `port`, where a broker of a cluster serves other brokers; None if it has none."""
        return next((each.name for each in self.endpoints if (each.host, each.port) == (self.host, self.port)), None)

    def reached_by(self, listener_name: str) -> tuple[str, int]:
        """Return host and port for a client of a listener, which should connect through the same listener again."""
        for endpoint in self.endpoints:
            if endpoint.name == listener_name:
                return endpoint.host, endpoint.port
        return self.host, self.port


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic: its partitions in order, and its config overrides (as text)."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str] = field(default_factory=lambda: _NO_CONFIGS)

    @property
    def is_internal(self) -> bool:
        """Whether the topic holds the state of brokers."""
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        """Number of replicas of the first partition, of a reassigned one after that."""
        return len(self.partitions[0].target)


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The cluster at one moment. Immutable: a change creates a new image.

    Args:
        brokers: The live brokers.
        registrations: The last registration of every broker, live or not.
        topics: Topics by name.
        topic_names: Names by topic id.
        collision_names: Names by their collision key (see `topic_names.collision_key`).
        broker_configs: Dynamic configs by broker id as text, and of all brokers under `<default>`.
        acls: Access control lists by node name; the same object until one of them changes.
        client_quotas: Client quotas by node name, likewise.
        group_configs: Configs by group id; the same object until one of them changes.
        scram_credentials: Credentials by user and mechanism, likewise; never logged.
        unknown_users_key: The secret from which the salts of unknown users are derived; never logged.
        features: The finalized feature levels; the first ones, if the store has none.
        deleted_topics: When each topic was deleted, by its id as text, in wall-clock ms; kept for some days.
    """

    cluster_id: str = ""
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    registrations: Mapping[int, BrokerRegistration] = field(default_factory=dict)
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
    deleted_topics: Mapping[str, int] = field(default_factory=dict, repr=False)
    features: FinalizedFeatures = FIRST_FEATURES

    def topic(self, name: str) -> TopicImage | None:
        """Return a topic by name, or None."""
        return self.topics.get(name)

    def is_deleted(self, topic_id: UUID) -> bool:
        """Whether a topic was deleted, some days ago at most. What is only absent may come back."""
        return str(topic_id) in self.deleted_topics

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        """Return a topic by id, or None."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def apply(self, changes: Iterable[tuple[str, bytes | None]]) -> "MetadataImage":
        """Return the image after changes of nodes (path and new data, None for a deleted node); CorruptNodeError.

        Paths outside the image are ignored.
        """
        return _ImageBuilder(self).apply(changes)


class _TopicChange:
    """The changed nodes of one topic; `image` is the topic before, None for a topic that is new."""

    __slots__ = ("chunks", "image", "node", "path")

    def __init__(self, path: str, image: TopicImage | None) -> None:
        self.path = path
        self.image = image
        self.node: bytes | None = None
        self.chunks: dict[int, tuple[PartitionImage, ...]] = {}


class _ImageBuilder:
    """The changed fields of an image: a mapping is copied at its first change."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._changed: dict[str, Any] = {}
        # A topic's state is spread over several nodes: it is put together after the last change.
        self._topic_changes: dict[str, _TopicChange] = {}
        # The configs of a topic may precede the topic.
        self._topic_configs: dict[str, Mapping[str, str]] = {}

    def apply(self, changes: Iterable[tuple[str, bytes | None]]) -> MetadataImage:
        for path, data in changes:
            parent, _, name = path.rpartition("/")
            follow = _FOLLOWS_BELOW.get(parent) or _FOLLOWS_AT.get(path)
            if follow is not None:
                follow(self, path, name, data)
            elif parent.startswith(_BELOW_TOPICS):
                self._chunk(path, parent[len(_BELOW_TOPICS) :], name, data)
        for name, change in self._topic_changes.items():
            if change.node is not None or change.chunks:
                self._put_topic(name, change)
        return replace(self._image, **self._changed)

    def set(self, field_name: str, value: object) -> None:
        self._changed[field_name] = value

    def mapping(self, field_name: str) -> dict[Any, Any]:
        found: dict[Any, Any] | None = self._changed.get(field_name)
        if found is None:
            found = self._changed[field_name] = dict(getattr(self._image, field_name))
        return found

    def broker(self, path: str, name: str, data: bytes | None) -> None:
        brokers, registrations = self.mapping("brokers"), self.mapping("registrations")
        broker_id = int(name)
        brokers.pop(broker_id, None)
        registrations.pop(broker_id, None)
        if data is not None:
            registration = BrokerRegistration(broker_id, *paths.decode_known_broker(path, data))
            registrations[broker_id] = registration
            if registration.is_alive:
                brokers[broker_id] = registration

    def topic(self, path: str, name: str, data: bytes | None) -> None:
        if data is not None:
            self._topic_change(path, name).node = data
            return
        self._topic_changes[name] = _TopicChange(path, None)
        topics: dict[str, TopicImage] = self.mapping("topics")
        old = topics.pop(name, None)
        if old is not None:
            del self.mapping("topic_names")[old.topic_id], self.mapping("collision_names")[collision_key(name)]

    def _topic_change(self, path: str, name: str) -> _TopicChange:
        change = self._topic_changes.get(name)
        if change is None:
            image: TopicImage | None = self.mapping("topics").get(name)
            change = self._topic_changes[name] = _TopicChange(path, image)
        return change

    def _chunk(self, path: str, topic: str, chunk: str, data: bytes | None) -> None:
        """Note the new state of partitions; a chunk is deleted only together with its topic."""
        if data is not None:
            if not chunk.isdecimal():
                raise paths.CorruptNodeError(path, data)
            self._topic_change(paths.topic_path(topic), topic).chunks[int(chunk)] = decode_chunk(path, data)

    def _put_topic(self, name: str, change: _TopicChange) -> None:
        topics: dict[str, TopicImage] = self.mapping("topics")
        old = change.image
        if change.node is not None:
            topic_id, count = decode_topic(change.path, change.node)
        elif old is not None:
            topic_id, count = old.topic_id, len(old.partitions)
        else:
            raise paths.CorruptNodeError(change.path, b"")
        if old is not None and old.topic_id != topic_id:
            del self.mapping("topic_names")[old.topic_id]
            old = None
        partitions = partitions_with(() if old is None else old.partitions, count, change.chunks)
        if partitions is None:
            raise paths.CorruptNodeError(change.path, change.node or b"")
        configs = self._topic_configs.pop(name, None)
        if configs is None:
            configs = _NO_CONFIGS if old is None else topics[name].configs
        topics[name] = TopicImage(name, topic_id, partitions, configs)
        self.mapping("topic_names")[topic_id] = name
        self.mapping("collision_names")[collision_key(name)] = name

    def topic_config(self, path: str, name: str, data: bytes | None) -> None:
        configs = _NO_CONFIGS if data is None else _decode_configs(path, name, data)
        topics: dict[str, TopicImage] = self.mapping("topics")
        topic = topics.get(name)
        if topic is None:
            self._topic_configs[name] = configs
        else:
            topics[name] = replace(topic, configs=configs)


_Follow = Callable[[_ImageBuilder, str, str, bytes | None], None]
"""Applies a change to an image: path, last name of the path, data of the node (None for a deleted node)."""


def _entry(field_name: str, key: Callable[[str], Hashable], decode: Callable[[str, str, bytes], object]) -> _Follow:
    """Each node is an entry of a mapping: `key` of its name maps to the result of `decode`."""

    def follow(builder: _ImageBuilder, path: str, name: str, data: bytes | None) -> None:
        if data is None:
            builder.mapping(field_name).pop(key(name), None)
        else:
            builder.mapping(field_name)[key(name)] = decode(path, name, data)

    return follow


def _value(field_name: str, decode: Callable[[str, bytes], object], gone: object = None) -> _Follow:
    """The node is a single value, set to `gone` when the node is deleted; without `gone` it is kept."""

    def follow(builder: _ImageBuilder, path: str, _: str, data: bytes | None) -> None:
        if data is not None:
            builder.set(field_name, decode(path, data))
        elif gone is not None:
            builder.set(field_name, gone)

    return follow


def _decode_configs(path: str, _: str, data: bytes) -> Mapping[str, str]:
    return MappingProxyType(paths.decode_config(path, data))


#: Functions for changes of nodes below a parent.
_FOLLOWS_BELOW: Final[Mapping[str, _Follow]] = {
    paths.TOPICS: _ImageBuilder.topic,
    paths.TOPIC_CONFIGS: _ImageBuilder.topic_config,
    paths.KNOWN_BROKERS: _ImageBuilder.broker,
    paths.BROKER_CONFIGS: _entry("broker_configs", str, _decode_configs),
    paths.GROUP_CONFIGS: _entry("group_configs", paths.group_of_config, _decode_configs),
    paths.DELETED_TOPICS: _entry("deleted_topics", str, lambda path, _, data: paths.decode_deleted_topic(path, data)),
    paths.ACLS: _entry("acls", str, lambda path, _, data: decode_acl(path, data)),
    paths.CLIENT_QUOTAS: _entry("client_quotas", str, lambda path, _, data: decode_quota(path, data)),
    paths.SCRAM_USERS: _entry(
        "scram_credentials", user_of_node, lambda path, _, data: MappingProxyType(decode_scram(path, data))
    ),
}
#: Functions for changes of single nodes.
_FOLLOWS_AT: Final[Mapping[str, _Follow]] = {
    paths.CONTROLLER: _value("controller_id", lambda _, data: paths.decode_controller(data), gone=NO_BROKER),
    paths.CLUSTER_ID: _value("cluster_id", lambda _, data: paths.decode_cluster_id(data)),
    paths.FEATURES: _value("features", paths.decode_features, gone=FIRST_FEATURES),
    paths.UNKNOWN_USERS_KEY: _value("unknown_users_key", decode_unknown_users_key),
}


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """The changes of topics between two images.

    A topic deleted and created again under the same name is in `deleted` (the old one) and in `created` (the new one).
    `changed` has the new image of each topic with changed partitions or resolved configs.
    """

    old: MetadataImage
    new: MetadataImage
    created: tuple[TopicImage, ...]
    deleted: tuple[TopicImage, ...]
    changed: tuple[TopicImage, ...]


def metadata_delta(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """Compare two images; topics are compared by identity first, so that unchanged topics cost almost nothing."""
    created, changed = [], []
    # A dynamic config of the broker may be the default of any topic.
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
    """The newest image and its subscribers.

    Invariant: when `publish` returns, every subscriber has processed the change. Only the follower calls it.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._static_config = config
        #: The effective configs of this broker: static configs with all dynamic configs that are valid for them.
        #: Immutable; a change of the image replaces it.
        self.config = config
        self._unfit: Mapping[str, str] = {}
        self._image = MetadataImage()
        self._subscribers: list[Callable[[MetadataDelta], None]] = []
        self._preparers: list[Callable[[MetadataDelta], Awaitable[None]]] = []
        self._derived: dict[Hashable, bytes] = {}

    @property
    def image(self) -> MetadataImage:
        """The newest image of the cluster."""
        return self._image

    @property
    def static_config(self) -> BrokerConfig:
        """The static configs of this broker, for reports and checks of dynamic configs."""
        return self._static_config

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        """Resolve a topic's configs: its overrides, this broker's dynamic and static configs, and the defaults."""
        return TopicConfig.resolve(topic.configs, self.config)

    def derived(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return bytes that depend on the image alone (an encoded response), created once for each image and key."""
        known = self._derived.get(key)
        if known is None:
            if len(self._derived) >= DERIVED_MAX:
                self._derived.clear()
            known = self._derived[key] = make()
        return known

    def subscribe(self, callback: Callable[[MetadataDelta], None]) -> None:
        """Call `callback`, synchronously and in order of subscription, with every later change."""
        self._subscribers.append(callback)

    def prepare_with(self, prepare: Callable[[MetadataDelta], Awaitable[None]]) -> None:
        """Await `prepare` with each change before it is published (see `advance`)."""
        self._preparers.append(prepare)

    async def advance(self, image: MetadataImage) -> None:
        """Publish an image after its preparation; no other image is published meanwhile.

        If the preparation fails, the image is published without it.
        """
        if self._preparers:
            delta = metadata_delta(self._image, image)
            for prepare in self._preparers:
                try:
                    await prepare(delta)
                except Exception:
                    # The change is durable and must be published in any case.
                    log.exception("a change of metadata could not be prepared")
        self.publish(image)

    def publish(self, image: MetadataImage) -> None:
        """Replace the image and notify the subscribers.

        An error of a subscriber is logged and does not affect the others; the first error is raised at the end.
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
                log.exception("a subscriber failed to apply a change of the metadata")
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def _apply_dynamic(self, dynamic: Mapping[str, str]) -> None:
        self.config, unfit = self._static_config.with_fitting(dynamic)
        # The config was valid when it was stored: the static configs have changed since.
        for name, reason in unfit.items():
            if self._unfit.get(name) != reason:
                log.error("the dynamic config %s is not applied and has no effect: %s", name, reason)
        self._unfit = unfit


def dynamic_broker_configs(image: MetadataImage, node_id: int) -> dict[str, str]:
    """Return the dynamic configs of a broker: those of all brokers, overridden by its own."""
    return {
        **image.broker_configs.get(paths.CLUSTER_DEFAULT, _NO_CONFIGS),
        **image.broker_configs.get(str(node_id), _NO_CONFIGS),
    }
