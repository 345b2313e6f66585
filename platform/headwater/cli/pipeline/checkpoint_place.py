"""Where a command finds a pipeline's checkpoints, and on which machine the pipeline runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_security, servers, settings

if TYPE_CHECKING:
    from headwater.pipelines.definition import Loaded
    from headwater.pipelines.file_systems.options import FileSystemOptions
    from headwater.pipelines.monitoring.status import StageStatus


def wanted_place(given: str | None, in_file: str) -> str:
    """Return the URL of a run's checkpoints ('': the state folder): of the command line, the file, or the settings."""
    return in_file or settings().checkpoints if given is None else given


def known_or_wanted_place(given: str | None, in_file: str, state: str, pipeline: str) -> str:
    """Return the URL of a pipeline's checkpoints for a command that reads them: else where the last run had them."""
    from headwater.pipelines.deployment.state_place import known_place

    return wanted_place(given, in_file) or (known_place(state, pipeline) if given is None else None) or ""


def file_options(loaded: Loaded) -> FileSystemOptions:
    """Return the options of file systems, with the settings of Hadoop in a pipeline's `spark:`."""
    from headwater.pipelines.file_systems.options import FileSystemOptions

    own = {name: text.value for name, text in loaded.pipeline.spark.items()}
    return FileSystemOptions.of({name: value for name, value in own.items() if value is not None})


@contextmanager
def reported_file_errors(verb: str) -> Iterator[None]:
    """Report a file system that cannot be used as a line."""
    from headwater.pipelines.errors import PipelineFailed
    from headwater.pipelines.file_systems.file_system import FileSystemError

    try:
        yield
    except (FileSystemError, PipelineFailed) as error:
        raise CliError(verb, str(error), exit_code=EXIT_FAILED) from None


def running_stage(pipeline: str, bootstrap_servers: str | None) -> StageStatus | None:
    """Return the latest status of a stage of a live run, on whatever machine, as the status topic has it.

    None if no run is alive. Raises CliError if the topic cannot be read.
    """
    from headwater.api.pipeline_status import PipelineStatus
    from headwater.api.topic_admin import TopicAdmin
    from headwater.api.topic_model import TopicAdminError

    admin = TopicAdmin(servers(bootstrap_servers), security=client_security())
    reader = PipelineStatus(admin, security=client_security())
    try:
        found = reader.stages()
    except TopicAdminError as error:
        raise CliError("", f"whether {pipeline} runs is unknown: {error}", exit_code=EXIT_FAILED) from None
    finally:
        reader.close()
    now_ms = reader.now_ms()
    alive = [s for (name, _), s in found.items() if name == pipeline and not s.is_over and not s.is_lost(now_ms)]
    return max(alive, key=lambda status: status.time_ms, default=None)
