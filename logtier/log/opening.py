"""Creates `Log` objects, from an existing folder or in a new one."""

from uuid import UUID

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.directory_health import DirectoryHealth
from headwater.logtier.log.durability import Post
from headwater.logtier.log.leader_epochs import LeaderEpochs
from headwater.logtier.log.loaded_log import LoadedLog
from headwater.logtier.log.log import Log
from headwater.logtier.log.producers.producer_snapshots import ProducerSnapshots
from headwater.logtier.log.producers.producer_state import ProducerStates
from headwater.logtier.log.recovery import load_log
from headwater.logtier.log.segments.segment import LogSegment
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.disk import Disk


def open_log(
    disk: Disk,
    directory: str,
    topic_partition: TopicPartition,
    topic_id: UUID,
    config: TopicConfig,
    *,
    was_stopped_cleanly: bool,
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
    roll_jitter_ms: int = 0,
    health: DirectoryHealth | None = None,
    post: Post | None = None,
) -> Log:
    """Open or create the log in `directory`, which exists (see `recovery.load_log`)."""
    loaded = load_log(
        disk,
        directory,
        topic_partition,
        topic_id,
        was_stopped_cleanly=was_stopped_cleanly,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        index_interval_bytes=config.index_interval_bytes,
        now_ms=now_ms,
    )
    return _log_of(disk, loaded, config, roll_jitter_ms, health, post)


def begin_log(
    disk: Disk,
    directory: str,
    topic_partition: TopicPartition,
    topic_id: UUID,
    config: TopicConfig,
    *,
    now_ms: int,
    roll_jitter_ms: int,
    health: DirectoryHealth,
    post: Post | None,
) -> Log:
    """Create a log in a new folder, without listing the folder as `open_log` does.

    May be called on any thread, before the log is shared.
    """
    segment = LogSegment.create(
        disk, directory, 0, now_ms=now_ms, index_interval_bytes=config.index_interval_bytes, is_folder_new=True
    )
    loaded = LoadedLog(
        directory=directory,
        topic_partition=topic_partition,
        topic_id=topic_id,
        segments=(segment,),
        log_start_offset=0,
        log_end_offset=0,
        recovery_point=0,
        producers=ProducerStates(),
        snapshots=ProducerSnapshots(disk, directory, ()),
        leader_epochs=LeaderEpochs(disk, directory),
    )
    return _log_of(disk, loaded, config, roll_jitter_ms, health, post)


def _log_of(
    disk: Disk,
    loaded: LoadedLog,
    config: TopicConfig,
    roll_jitter_ms: int,
    health: DirectoryHealth | None,
    post: Post | None,
) -> Log:
    log = Log(disk, loaded, config, roll_jitter_ms=roll_jitter_ms, health=health, post=post)
    log.release()
    return log
