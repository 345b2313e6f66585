"""What a handler gets beside its request."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from logtier.config import BrokerConfig
from logtier.controller.controller import Controller
from logtier.group.coordinator import GroupCoordinator
from logtier.metadata.image import MetadataCache
from logtier.replication.replica_manager import ReplicaManager
from logtier.runtime.clock import Clock


@dataclass(slots=True)
class Services:
    """The parts of the broker that handlers may touch."""

    config: BrokerConfig
    clock: Clock
    prng: random.Random
    metadata: MetadataCache
    controller: Controller
    replica_manager: ReplicaManager
    groups: GroupCoordinator
    #: First and last version of every API, as ApiVersions tells them.
    advertised_versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class RequestContext:
    """One request's surroundings: who asks, from where, in which version."""

    services: Services
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    principal: str
