"""Airflow's side of the command line: an operator, a sensor, and what all DAGs share."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, BaseHook, BaseOperator, BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from headwater_command import NOT_YET, USER_ERROR, Command, CommandError, CommandMissingError, client_properties
from headwater_settings import Settings

__all__ = [
    "HeadwaterOperator",
    "ReadySensor",
    "asset_of",
    "failure_callbacks",
    "load_arguments",
    "pool_of",
    "target_of",
    "task_arguments",
]

#: How long a load waits for one that was started by hand into the same target. Airflow's own wait for their pool.
LOAD_WAIT_S = 600
LOGGED_LINES_MAX = 1_000


class _RunsCommand:
    """Runs the command for a task; Airflow's `on_kill` ends it."""

    settings: Settings
    log: Any
    _command: Command | None = None

    def run_command(self, arguments: Sequence[str]) -> str:
        """The command's output. Raises AirflowFailException where a repetition changes nothing, and CommandError."""
        settings = self.settings
        with tempfile.TemporaryDirectory(prefix="headwater-") as folder:
            line = [settings.command, *arguments, *_connection_arguments(settings, folder)]
            self.log.info("Running %s", shlex.join(line))
            self._command = Command(line, lambda text: self.log.info("%s", text), settings.environment)
            try:
                return self._command.run()
            except CommandMissingError as error:
                raise AirflowFailException(str(error)) from None
            except CommandError as error:
                if error.exit_code == USER_ERROR:
                    raise AirflowFailException(str(error)) from None
                raise

    def on_kill(self) -> None:
        """End the command with everything that it started."""
        if self._command is not None:
            self._command.stop()


class HeadwaterOperator(_RunsCommand, BaseOperator):
    """Runs one command of Headwater; its output is the task's result, parsed where it is JSON."""

    template_fields: Sequence[str] = ("arguments",)
    ui_color = "#d6e8f5"

    def __init__(self, *, settings: Settings, arguments: Sequence[str], is_json: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.settings = settings
        self.arguments = list(arguments)
        self.is_json = is_json

    def execute(self, context: Context) -> Any:  # noqa: ARG002 - Airflow's signature
        """Run it."""
        try:
            # Templates can leave an argument out, by making it empty.
            output = self.run_command([argument for argument in self.arguments if argument])
        except CommandError as error:
            raise AirflowException(str(error)) from None
        for line in output.splitlines()[:LOGGED_LINES_MAX]:
            self.log.info("%s", line)
        return json.loads(output) if self.is_json else None


class ReadySensor(_RunsCommand, BaseSensorOperator):
    """Waits until every partition of the topics is past a time. Between two looks it holds no slot."""

    template_fields: Sequence[str] = ("until",)
    ui_color = "#eef3f7"

    def __init__(
        self, *, settings: Settings, topics: Sequence[str], until: str, lateness_s: float, idle_s: float, **kwargs: Any
    ) -> None:
        super().__init__(mode="reschedule", **kwargs)
        self.settings = settings
        self.topics = list(topics)
        self.until = until
        self.lateness_s = lateness_s
        self.idle_s = idle_s

    def poke(self, context: Context) -> bool:  # noqa: ARG002 - Airflow's signature
        """One look."""
        arguments = ["load", "--ready", *self.topics, "--until", self.until]
        try:
            self.run_command([*arguments, "--lateness", str(self.lateness_s), "--idle", str(self.idle_s)])
        except CommandError as error:
            if error.exit_code == NOT_YET:
                return False
            raise AirflowException(str(error)) from None
        return True


def load_arguments(entry: Any) -> list[str]:
    """`headwater load` for the topics of an entry, without what says from where to where."""
    found = ["load", *entry.topics, "--to", entry.to, "--format", entry.format]
    for option in ("value", "schema", "registry"):
        if getattr(entry, option) is not None:
            found += [f"--{option}", getattr(entry, option)]
    # A gap by retention is recorded, so that what still exists is saved; the check then fails the run. The command ends
    # with this task by an option of its own, too: a `command:` that runs it as another user loses the kernel's signal.
    return [*found, *entry.options, "--on-gap", "record", "--wait", str(LOAD_WAIT_S), "--end-with-caller", "-o", "json"]


def target_of(entry: Any, topic: str) -> str:
    """The target of one topic."""
    return str(entry.to).replace("{topic}", topic).rstrip("/")


def asset_of(entry: Any, topic: str) -> Asset:
    """The asset that stands for a target: other DAGs are scheduled on it."""
    target = target_of(entry, topic)
    uri = target if ":/" in target else f"file://{target}"
    return Asset(name=f"headwater/{entry.name}/{topic}", uri=uri, group="headwater")


def pool_of(entry: Any) -> str:
    """The pool of a target, which has one slot: a backfill and a scheduled run do not load into it side by side."""
    return f"headwater_{entry.name}"


def task_arguments(entry: Any) -> dict[str, Any]:
    """Retries and time limits of an entry's commands.

    A repeated command takes the range that was written down and changes nothing that is done: retries are free of risk.
    They grow apart, since what fails is mostly a service that restarts. The time limit is for a command that hangs: it
    would hold its pool's slot, and with it the target, for ever.
    """
    return {
        "retries": entry.retries,
        "retry_delay": timedelta(seconds=entry.retry_delay_s),
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(hours=1),
        "execution_timeout": timedelta(seconds=entry.timeout_s),
    }


def failure_callbacks(settings: Settings) -> list[Any]:
    """What Airflow calls when a task has failed for good."""
    if settings.mail is None:
        return []
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    return [SmtpNotifier(to=settings.mail.to, smtp_conn_id=settings.mail.connection)]


def _connection_arguments(settings: Settings, folder: str) -> list[str]:
    if settings.connection is not None:
        properties = BaseHook.get_connection(settings.connection).extra_dejson
        return ["--command-config", client_properties(properties, folder)]
    found = []
    if settings.bootstrap_servers is not None:
        found += ["--bootstrap-servers", settings.bootstrap_servers]
    if settings.command_config is not None:
        found += ["--command-config", settings.command_config]
    return found
