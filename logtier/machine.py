"""The machine of a broker: everything outside the broker's own memory, as interfaces."""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from headwater.logtier.config import BrokerConfig, ConfigError
from headwater.logtier.log.cleaning.cleaner_process import CleanerProcess, Worker
from headwater.logtier.log.folders.log_directory import META_PROPERTIES, stored_cluster_ids
from headwater.logtier.metadata.change_list import OrderedMetadataStore
from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.metadata.shared_store import SharedMetadataStore
from headwater.logtier.runtime.boot_id import system_boot_id
from headwater.logtier.runtime.clock import Clock, SystemClock
from headwater.logtier.runtime.cold_sender import Sender
from headwater.logtier.runtime.disk import Disk, RealDisk
from headwater.logtier.runtime.network import Network, SocketNetwork
from headwater.logtier.runtime.outgoing import OutgoingNetwork, SocketOutgoingNetwork
from headwater.logtier.runtime.random_bytes import RandomBytes, system_random_bytes
from headwater.logtier.runtime.read_ahead import ReadAhead

#: Folder of the embedded metadata store in the first of `log.dirs`; its name is not that of a partition.
METADATA_DIRECTORY: Final = "__cluster_metadata"

CLUSTER_FILES: Final = ("cluster.properties", "cluster-migration/journal.json")
"""Files in the data folder of several brokers, or of a node that becomes one of them."""

OpenStore: TypeAlias = Callable[[BrokerConfig, Disk, Callable[[str], None]], OrderedMetadataStore]
"""Creates the metadata store of a broker; the last argument is called when the store has failed, with the reason."""


def configured_store(config: BrokerConfig, disk: Disk, on_failure: Callable[[str], None]) -> OrderedMetadataStore:
    """Create the store in ZooKeeper or, for a single-node cluster, in the first of `log.dirs`.

    Raises:
        ConfigError: A config does not fit, or the folder lacks its metadata.
        LogDirError: The `meta.properties` of a folder is damaged.
    """
    if config.zookeeper_connect is not None:
        return _zookeeper_store(config, disk)
    folder = config.log_dirs[0]
    metadata = os.path.join(folder, METADATA_DIRECTORY)
    if any(disk.exists(os.path.join(folder, name)) for name in CLUSTER_FILES):
        raise ConfigError(
            f"log folder {folder}: it is that of a cluster on one machine, or becomes one: start it with `headwater "
            "up`, which says what it is"
        )
    if disk.exists(os.path.join(folder, META_PROPERTIES)) and not disk.exists(metadata):
        # An empty store would be another cluster, and its folder would be left in that of the broker.
        raise ConfigError(
            f"log folder {folder}: it has no metadata ({METADATA_DIRECTORY}): if its broker belongs to a cluster, set "
            "zookeeper.connect; else name first in log.dirs the folder that has them, or restore them from a backup"
        )
    return LocalMetadataStore(metadata, disk, on_failure=on_failure)


def _zookeeper_store(config: BrokerConfig, disk: Disk) -> OrderedMetadataStore:
    # Only here: a single node has no use for kazoo, which takes 40 ms and 1.3 MiB to import.
    from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
    from headwater.logtier.metadata.zookeeper.store import ZooKeeperStore

    # The chroot of a broker whose folders belong to a cluster has the cluster's nodes, or its name is misspelt.
    is_new = not stored_cluster_ids(disk, config.log_dirs)
    return SharedMetadataStore(ZooKeeperStore(ZooKeeperSettings.from_config(config, creates_chroot=is_new)))


@dataclass(frozen=True, slots=True)
class Machine:
    """The interfaces through which a broker reaches time, chance, files, other processes and its peers.

    Invariant: for the same event loop and the same machine, a broker does the same. The event loop is an interface,
    too: timers, and work for threads (`asyncio.to_thread`, `run_in_executor`), which a simulated loop runs itself.

    Attributes:
        random_bytes: Source of secrets; `prng` serves everything that may be guessed.
        network: Creates the network; its argument sends cold file slices from another process.
        outgoing: Connects to other brokers.
        read_ahead: Creates the probe of the page cache.
        cleaner_worker: Creates the worker of one cleaning; by default a process.
        metadata_store: Creates the metadata store.
        boot_id: Returns the id of the machine's present boot.
    """

    clock: Clock = field(default_factory=SystemClock)
    prng: random.Random = field(default_factory=random.Random)
    random_bytes: RandomBytes = system_random_bytes
    disk: Disk = field(default_factory=RealDisk)
    network: Callable[[Sender], Network] = SocketNetwork
    outgoing: OutgoingNetwork = field(default_factory=SocketOutgoingNetwork)
    read_ahead: Callable[[], ReadAhead] = ReadAhead
    cleaner_worker: Callable[[], Worker] = CleanerProcess
    metadata_store: OpenStore = configured_store
    boot_id: Callable[[], str] = system_boot_id
