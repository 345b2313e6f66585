"""Keeps the child processes of a node running: a restart policy (pure) and the process shell around it.

Imports only the standard library: `headwater up` must have its children running before anything else is loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.child import LINE_BYTES_MAX

#: How long the end of a child may come before the signal that explains it.
GROUP_SIGNAL_GRACE_S = 0.1

#: How long the end of a child may come after that of its pipe.
EXIT_WAIT_S = 5

#: Exit code of a child whose options or properties are wrong (`headwater.cli.shell.errors`).
USER_ERROR_EXIT_CODE = 2


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Number and delay of restarts of a child that died; without `attempts_max`, restarts are unlimited."""

    attempts_max: int | None
    backoff_ms: int
    backoff_max_ms: int
    healthy_after_ms: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart the child after a pause; `attempt` counts from 1 since the child was last healthy."""

    attempt: int
    after_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not restart the child."""

    attempts: int


def decide(policy: RestartPolicy, attempts: int, uptime_ms: int) -> Restart | GiveUp:
    """Decide whether to restart a child that ran for `uptime_ms` after `attempts` consecutive restarts.

    >>> policy = RestartPolicy(attempts_max=2, backoff_ms=100, backoff_max_ms=1000, healthy_after_ms=5000)
    >>> decide(policy, attempts=0, uptime_ms=10)
    Restart(attempt=1, after_ms=100)
    >>> decide(policy, attempts=1, uptime_ms=10)
    Restart(attempt=2, after_ms=200)
    >>> decide(policy, attempts=2, uptime_ms=10)
    GiveUp(attempts=2)
    >>> decide(policy, attempts=2, uptime_ms=6000)
    Restart(attempt=1, after_ms=100)
    """
    if uptime_ms >= policy.healthy_after_ms:
        attempts = 0
    if policy.attempts_max is not None and attempts >= policy.attempts_max:
        return GiveUp(attempts)
    # The exponent is bounded: 2**31 ms is above every limit of the settings.
    return Restart(attempts + 1, min(policy.backoff_ms << min(attempts, 31), policy.backoff_max_ms))


def describe_exit(exit_code: int) -> str:
    """Describe the exit of a process.

    >>> describe_exit(-9), describe_exit(1)
    ('was ended by SIGKILL', 'ended with exit code 1')
    """
    if exit_code < 0:
        try:
            return f"was ended by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"was ended by signal {-exit_code}"
    return f"ended with exit code {exit_code}"


class ChildError(RuntimeError):
    """A child did not become ready; the message is one line for the user."""

    def __init__(self, message: str, *, is_user_error: bool = False) -> None:
        """`is_user_error`: its options or properties are wrong."""
        super().__init__(message)
        self.is_user_error = is_user_error


class Child:
    """A process of a node: started, monitored, restarted according to the policy, stopped.

    Invariant: at most one process exists, and none after `stop`. The process also ends by itself when the supervisor
    exits, because it watches a pipe whose writing end the supervisor holds (see `headwater.child`).
    """

    def __init__(
        self,
        name: str,
        command: Callable[[Mapping[str, Any] | None], Sequence[str]],
        policy: RestartPolicy,
        *,
        start_timeout_ms: int,
        stop_timeout_ms: int,
        report: Callable[[str], None],
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`command` returns the arguments, given the addresses of the first start (None at first), so a restarted
        process gets the same ports; `report` receives one line per restart, and `on_ready` is called whenever a process
        has become ready.
        """
        self.name = name
        self._command = command
        self._policy = policy
        self._start_timeout_ms = start_timeout_ms
        self._stop_timeout_ms = stop_timeout_ms
        self._report = report
        self._on_ready = on_ready
        self._process: subprocess.Popen[bytes] | None = None
        self._parent_fd: int | None = None
        self._ready_fd: int | None = None
        self._line: bytes | None = None
        #: When a process that is not ready has failed.
        self._deadline_s = 0.0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._on_give_up: Callable[[], None] = lambda: None
        #: Why the last start failed; None once the process is ready.
        self._failure: str | None = None
        self.addresses: Mapping[str, Any] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the running process; None if no process runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def start(self) -> None:
        """Start the process; returns at once. `wait_ready` follows."""
        self._spawn()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send the process its one line, now and after each restart; it may have waited for it until now."""
        with self._lock:
            self._line = json.dumps(message).encode() + b"\n"
            self._set_deadline()
            self._write_line()

    def wait_ready(self, on_give_up: Callable[[], None]) -> Mapping[str, Any]:
        """Wait until the process reports its addresses; from then on it is restarted when it dies.

        Raises:
            ChildError: The process failed, exited or took too long since its start. It may still run, so that a caller
                learns of several failures before it waits for an end; `stop` or `keep_starting` follows.
        """
        try:
            self.addresses = self._read_ready()
        except ChildError:
            raise
        except BaseException:
            self.stop()
            raise
        self._watch(on_give_up)
        self._on_ready()
        return self.addresses

    def keep_starting(self, failure: ChildError, on_give_up: Callable[[], None]) -> None:
        """End and restart a process for which `wait_ready` raised `failure`, as one that died; returns at once."""
        self._report_failure(str(failure))
        self._watch(on_give_up, is_failed=True)

    def _watch(self, on_give_up: Callable[[], None], *, is_failed: bool = False) -> None:
        self._on_give_up = on_give_up
        self._watcher = threading.Thread(
            target=self._keep_alive, kwargs={"is_failed": is_failed}, name=f"watch-{self.name}", daemon=True
        )
        self._watcher.start()

    def expect_end(self) -> None:
        """Allow the process to exit from now on: no restart follows."""
        self._stopping.set()

    def stop(self) -> None:
        """Stop the process: SIGTERM, then SIGKILL after the timeout. No restart follows."""
        self._stopping.set()
        self._end_process()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(timeout=self._stop_timeout_ms / 1000)
        with self._lock:
            self._close_pipes()

    def _end_process(self) -> None:
        with self._lock:
            process = self._process
        if process is not None:
            _end(process, self._stop_timeout_ms)

    def _spawn(self) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            self._close_pipes()
            ready_read, ready_write = os.pipe()
            try:
                parent_read, parent_write = os.pipe()
            except OSError:
                os.close(ready_read)
                os.close(ready_write)
                raise
            command = [*self._command(self.addresses), "--ready-fd", str(ready_write), "--parent-fd", str(parent_read)]
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(ready_write, parent_read)
                )
            finally:
                os.close(ready_write)
                os.close(parent_read)
                self._ready_fd, self._parent_fd = ready_read, parent_write
            self._set_deadline()
            self._write_line()

    def _set_deadline(self) -> None:
        self._deadline_s = time.monotonic() + self._start_timeout_ms / 1000

    def _write_line(self) -> None:
        if self._line is None or self._parent_fd is None:
            return
        with contextlib.suppress(BrokenPipeError):  # it died meanwhile, which the watcher sees
            os.write(self._parent_fd, self._line)

    def _read_ready(self) -> Mapping[str, Any]:
        assert self._ready_fd is not None
        line = bytearray()
        while not line.endswith(b"\n"):
            left_s = max(0.0, self._deadline_s - time.monotonic())
            # Read even after the deadline: it may have been ready long before its line is asked for.
            if not select.select([self._ready_fd], [], [], min(left_s, 0.5))[0]:
                if left_s == 0:
                    raise ChildError(f"{self.name} is not ready after {self._start_timeout_ms} ms (start_timeout_ms)")
                continue
            piece = os.read(self._ready_fd, 4096)
            if not piece:
                raise ChildError(f"{self.name} {self._describe_end()} before it was ready")
            line += piece
            if len(line) > LINE_BYTES_MAX:
                raise ChildError(f"{self.name} reported more than {LINE_BYTES_MAX} bytes")
        message = json.loads(line)
        if "error" in message:
            # The process says its exit code: its end, which closes what it has open, may be long in coming.
            raise ChildError(message["error"], is_user_error=message.get("exit_code") == USER_ERROR_EXIT_CODE)
        addresses = message["ready"]
        assert isinstance(addresses, dict)
        return addresses

    def _describe_end(self) -> str:
        assert self._process is not None
        try:
            return describe_exit(self._process.wait(timeout=EXIT_WAIT_S))
        except subprocess.TimeoutExpired:
            return "closed its pipe, and did not exit,"

    def _keep_alive(self, *, is_failed: bool) -> None:
        if is_failed:
            self._end_process()
        attempts = 0
        started = time.monotonic()
        while True:
            assert self._process is not None
            exit_code = self._process.wait()
            # A signal to the whole process group, as a terminal sends it, reaches the child before we have heard of it.
            if self._stopping.wait(GROUP_SIGNAL_GRACE_S):
                return
            uptime_ms = int((time.monotonic() - started) * 1000)
            decision = decide(self._policy, attempts, uptime_ms)
            if isinstance(decision, GiveUp):
                self._report(
                    f"{self.name} {describe_exit(exit_code)}: given up after {decision.attempts} restarts in a row"
                )
                self._on_give_up()
                return
            attempts = decision.attempt
            self._report_restart(exit_code, decision)
            if self._stopping.wait(decision.after_ms / 1000):
                return
            started = time.monotonic()
            self._restart()
            if self._stopping.is_set():
                return

    def _restart(self) -> None:
        """Start the process and wait until it is ready; after a failure none remains."""
        again = "" if self.addresses is None else " again"
        try:
            self._spawn()
            if self._stopping.is_set():
                return
            self.addresses = self._read_ready()
        except OSError as error:
            # No descriptor or no memory. The watcher lives on, and the ended process brings the next attempt.
            self._report_failure(f"{error.strerror}")
        except ChildError as error:
            self._end_process()
            self._report_failure(str(error))
        else:
            self._failure = None
            self._report(f"{self.name} is running{again}")
            self._on_ready()

    def _report_restart(self, exit_code: int, restart: Restart) -> None:
        limit = self._policy.attempts_max
        if limit is None and self._failure is not None:
            return  # It may never start: the reason was reported, and a line for each attempt would fill the terminal.
        of_limit = "" if limit is None else f" of {limit}"
        self._report(
            f"{self.name} {describe_exit(exit_code)}: restart {restart.attempt}{of_limit} in {restart.after_ms} ms"
        )

    def _report_failure(self, failure: str) -> None:
        """Report why the process did not start, unless the start before failed for the same reason."""
        if failure == self._failure or self._stopping.is_set():
            return
        self._failure = failure
        longest_ms = self._policy.backoff_max_ms
        has_limit = self._policy.attempts_max is not None
        follows = "" if has_limit else f"; it is tried again after a pause of at most {longest_ms} ms"
        self._report(f"{self.name} did not start: {failure}{follows}")

    def _close_pipes(self) -> None:
        for fd in (self._ready_fd, self._parent_fd):
            if fd is not None:
                os.close(fd)
        self._ready_fd = self._parent_fd = None


def _end(process: subprocess.Popen[bytes], timeout_ms: int) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout=timeout_ms / 1000)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
