"""Runs the command line `headwater` for a task: its messages become the task's log, its output the task's result.

This is all that the DAGs know of Headwater. The command has an environment of its own, with packages that need not go
with Airflow's; it is found on PATH, or named in the settings.

A command has a process group of its own, with the JVM that it starts. The group ends with the task: `stop` ends it when
Airflow kills the task, and the kernel when the task's process dies (PR_SET_PDEATHSIG, set by this file as a program).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Command", "CommandError", "CommandMissingError", "client_properties"]

#: Exit codes of `headwater`.
USER_ERROR, NOT_YET = 2, 75
#: Airflow kills a task's process 5 s after SIGTERM: until then the group is gone.
GRACE_S = 3.0
OUTPUT_BYTES_MAX = 16 << 20
#: Python's own variables are those of Airflow's environment: a command of another environment would import from there.
_PYTHONS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
_PR_SET_PDEATHSIG = 1


class CommandError(Exception):
    """The command ended with an exit code other than 0; the message is its last line."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class CommandMissingError(Exception):
    """There is no such command."""


class Command:
    """One run of a command line. `run` is called once; `stop` from a signal's handler or another thread.

    Args:
        arguments: The command and its arguments, without secrets: they are logged, and every process sees them.
        environment: Variables in addition to those of the task.
        log: Called with each line of the command's messages.
    """

    def __init__(
        self, arguments: Sequence[str], log: Callable[[str], None], environment: Mapping[str, str] | None = None
    ) -> None:
        self._arguments = list(arguments)
        self._environment = dict(environment or {})
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._last_line = ""
        self._stopped = False

    def run(self) -> str:
        """Run it to its end, and return its output. Raises CommandMissingError and CommandError."""
        program = self._program()
        inherited = {name: value for name, value in os.environ.items() if name not in _PYTHONS}
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            # A file, not a pipe: nobody needs to read it while the command runs.
            process = subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), str(os.getpid()), program, *self._arguments[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=inherited | self._environment,
                start_new_session=True,
            )
            self._process = process
            reader = threading.Thread(target=self._read_messages, name="messages", daemon=True)
            reader.start()
            try:
                if self._stopped:  # meanwhile
                    self.stop()
                code = process.wait()
            finally:
                self._end_group(process)
                reader.join(GRACE_S)  # not longer: a process that left the group may hold the other end
            if code:
                ended = f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                raise CommandError(code, self._last_line or f"{self._arguments[0]}: {ended}")
            output.seek(0)
            return output.read(OUTPUT_BYTES_MAX)

    def stop(self) -> None:
        """End the command: by SIGTERM, which lets it tidy up, and a moment later by SIGKILL. Does not wait."""
        self._stopped = True
        process = self._process
        if process is not None and process.returncode is None:
            _signal_group(process.pid, signal.SIGTERM)
            killer = threading.Timer(GRACE_S, _signal_group, (process.pid, signal.SIGKILL))
            killer.daemon = True
            killer.start()

    def _program(self) -> str:
        name = self._arguments[0]
        found = shutil.which(name)
        if found is None:
            raise CommandMissingError(
                f"there is no command {name!r} on this worker's PATH ({os.environ.get('PATH', '')}): install Headwater "
                "in an environment of its own, and put its command on PATH or name it by `command:` in the settings"
            )
        return found

    def _read_messages(self) -> None:
        process = self._process
        assert process is not None
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                if text := line.rstrip():
                    self._last_line = text
                    self._log(text)

    def _end_group(self, process: subprocess.Popen[str]) -> None:
        """Leave nothing: neither the command, if a time limit ended the wait for it, nor a JVM that outlived it."""
        if process.returncode is None:
            _signal_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()


def client_properties(settings: Mapping[str, object], folder: str) -> str:
    """Write an Airflow connection's properties as a file for `--command-config`, and return its path.

    The file is readable by its owner alone: no password is in an argument or a variable.
    """
    path = os.path.join(folder, "client.properties")
    names = ("bootstrap.servers", "client.id")
    lines = [
        f"{name}={value}\n"
        for name, value in settings.items()
        if name in names or name.startswith(("security.", "sasl.", "ssl.", "enable.ssl."))
    ]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.writelines(lines)
    return path


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def main(arguments: Sequence[str]) -> None:
    """Become a command that the kernel ends with the process that started it: PARENT PROGRAM ARGUMENT..."""
    parent, program, *rest = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before
        sys.exit(1)
    os.execv(program, [program, *rest])  # noqa: S606 - the point of it


if __name__ == "__main__":
    main(sys.argv[1:])
