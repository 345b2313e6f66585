"""Requests of WebHDFS: the active NameNode is found, and asked again while that can help, up to a bound.

A NameNode redirects reads and writes of contents to a DataNode. What a failure means is decided by `meaning`.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import json
import random
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from headwater.pipelines.file_systems.file_system import FileSystemError, UnavailableError
from headwater.pipelines.file_systems.options import WEBHDFS_VARIABLE

__all__ = ["Meaning", "Refusal", "WebHdfsAnswer", "WebHdfsClient", "answer_of", "meaning", "refusal"]

CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0
PAUSE_S: Final = 0.2  # after the first failure; it doubles
PAUSE_S_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_PREFIX: Final = "/webhdfs/v1"
_MESSAGE_CHARS_MAX: Final = 300

_PASSING: Final = frozenset({
    "SafeModeException", "RetriableException", "ObserverRetryOnActiveException", "NotReplicatedYetException",
    # Of a DataNode that does not reach the NameNode.
    "ConnectException", "ConnectTimeoutException", "EOFException", "NoRouteToHostException", "SocketTimeoutException",
})  # fmt: skip
#: Failures that share the class IOException with others.
_PASSING_TEXTS: Final = (
    "Failed to find datanode",  # no DataNode is known
    "could only be",  # written to fewer DataNodes than are asked for: they are lost, or full
    "java.io.EOFException",
    "Connection reset",
    "Connection refused",
)
T = TypeVar("T")


class Meaning(enum.Enum):
    """What a refusal of HDFS means for the request."""

    MISSING = "no such file"
    EXISTS = "the path exists"
    OTHER_NAMENODE = "the NameNode is a standby"
    WAIT = "it may pass by itself"
    FINAL = "it will not pass by itself"


class Refusal(Exception):  # noqa: N818 - where a caller expects it, it is no error
    """HDFS refused a request: the class of the exception in the server, and the first line of its message."""

    def __init__(self, status: int, exception: str, message: str) -> None:
        super().__init__(message or exception or f"HTTP status {status}")
        self.status = status
        self.meaning = meaning(status, exception, message)


@dataclass(frozen=True, slots=True)
class WebHdfsAnswer:
    """An answer: its status, where it redirects to, and its body."""

    status: int
    location: str
    body: bytes

    def json(self) -> Any:
        """Return the body's value. Raises FileSystemError."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise FileSystemError("the server's answer is no JSON: is it a NameNode's HTTP address?") from None


def meaning(status: int, exception: str, message: str) -> Meaning:
    """Tell what a refusal means.

    >>> meaning(403, "StandbyException", "").name, meaning(403, "SafeModeException", "").name
    ('OTHER_NAMENODE', 'WAIT')
    >>> meaning(403, "IOException", "Failed to find datanode, suggest to check cluster health.").name
    'WAIT'
    >>> meaning(403, "AccessControlException", "Permission denied: user=bob").name
    'FINAL'
    """
    if exception == "FileNotFoundException":
        return Meaning.MISSING
    if exception in ("FileAlreadyExistsException", "AlreadyBeingCreatedException"):
        return Meaning.EXISTS
    if exception == "StandbyException":
        return Meaning.OTHER_NAMENODE
    if exception in _PASSING or any(part in message for part in _PASSING_TEXTS):
        return Meaning.WAIT
    return Meaning.WAIT if status in (502, 503, 504) else Meaning.FINAL


def refusal(status: int, body: bytes) -> Refusal:
    """Return the refusal of an answer's body.

    >>> print(refusal(403, b'{"RemoteException": {"exception": "IOException", "message": "no /a\\\\nat x"}}'))
    no /a
    """
    found: Any = None
    with contextlib.suppress(ValueError):
        found = json.loads(body)
    remote = found.get("RemoteException") if isinstance(found, dict) else None
    if not isinstance(remote, dict):
        return Refusal(status, "", "")
    lines = str(remote.get("message") or "").splitlines()
    return Refusal(status, str(remote.get("exception", "")), lines[0][:_MESSAGE_CHARS_MAX] if lines else "")


@dataclass(slots=True)
class WebHdfsClient:
    """Asks the NameNodes at `urls`. The active one is remembered by each process. Can be pickled."""

    urls: Sequence[str]
    user: str
    token: str = field(repr=False)
    wait_s: float
    _active: int = 0

    def ask(self, method: str, path: str, operation: str, **parameters: str) -> WebHdfsAnswer:
        """Send a request that carries no content; it is repeated while that can help.

        Raises Refusal (MISSING, EXISTS or FINAL), and UnavailableError once `wait_s` has passed. After an error, or a
        repetition, the operation may have been done by an earlier request whose answer was lost.
        """
        return self.tried(path, lambda: self._of_namenode(method, path, operation, parameters))

    def write(self, path: str, data: bytes, **parameters: str) -> None:
        """Create a file with a content; as `ask`."""

        def attempt() -> WebHdfsAnswer:
            connection, target = self.datanode("PUT", path, "CREATE", parameters)
            with contextlib.closing(connection):
                headers = {"Content-Type": "application/octet-stream"}
                return _answered(connection, "PUT", target, data, headers)

        self.tried(path, attempt)

    def read(self, path: str, bytes_max: int) -> bytes:
        """Return a file's content; as `ask`. Raises FileSystemError for a larger one."""

        def attempt() -> bytes:
            connection, response = self.opened(path, 0)
            with contextlib.closing(connection):
                data = response.read(bytes_max + 1)
                if len(data) > bytes_max:
                    raise FileSystemError(f"{path} is larger than {bytes_max:,} bytes")
                # http.client takes an answer that was cut off for a whole one.
                if response.length:
                    raise ConnectionError(f"the answer was cut off {response.length:,} bytes before its end")
                return data

        return self.tried(path, attempt)

    def opened(self, path: str, offset: int) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Return the answer with a file's content from an offset, and its connection. Not repeated."""
        connection, target = self.datanode("GET", path, "OPEN", {"offset": str(offset)})
        try:
            connection.request("GET", target)
            response = connection.getresponse()
            if response.status >= 400:
                answer_of(response)
        except BaseException:
            connection.close()
            raise
        return connection, response

    def datanode(
        self, method: str, path: str, operation: str, parameters: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, str]:
        """Return a connection to where the NameNode redirects to, and the request's target there. Not repeated."""
        answer = self._of_namenode(method, path, operation, parameters)
        if not answer.location:
            raise http.client.HTTPException("the NameNode names no DataNode")
        connection = _connection(answer.location)
        split = urllib.parse.urlsplit(answer.location)
        return connection, f"{split.path}?{split.query}"

    def tried(self, path: str, attempt: Callable[[], T]) -> T:
        """Return what an attempt returns, repeated while its failure may pass, up to `wait_s`."""
        deadline = time.monotonic() + self.wait_s
        pause_s = PAUSE_S
        while True:
            try:
                return attempt()
            except Refusal as refused:
                if refused.meaning not in (Meaning.OTHER_NAMENODE, Meaning.WAIT):
                    if refused.status == 401:
                        raise FileSystemError(
                            f"{path}: WebHDFS asks for a login ({refused}): HDFS uses Kerberos, for which a delegation "
                            "token is needed (docs/how-to/hdfs_and_object_stores.md)"
                        ) from None
                    raise
                cause: Exception = refused
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, FileSystemError):
                    raise
                cause = error
            if not isinstance(cause, Refusal) or cause.meaning is Meaning.OTHER_NAMENODE or len(self.urls) > 1:
                self._active = (self._active + 1) % len(self.urls)
            if time.monotonic() + pause_s > deadline:
                raise UnavailableError(f"{path}: {self._explained(cause)}") from cause
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _explained(self, cause: Exception) -> str:
        waited = f"asked again for {self.wait_s:.0f} s"
        if isinstance(cause, Refusal):
            if cause.meaning is Meaning.OTHER_NAMENODE:
                return f"no NameNode of {', '.join(self.urls)} is active, {waited}; make one active"
            return f"HDFS cannot do it now: {cause} ({waited})"
        said = (str(cause).splitlines() or [""])[0] or type(cause).__name__
        return (
            f"WebHDFS does not answer at {', '.join(self.urls)}: {said} ({waited}); check that HDFS runs, and give the "
            f"NameNodes' HTTP addresses by HADOOP_CONF_DIR or {WEBHDFS_VARIABLE}"
        )

    def _of_namenode(self, method: str, path: str, operation: str, parameters: Mapping[str, str]) -> WebHdfsAnswer:
        """Ask the NameNode that was active last."""
        identity = {"delegation": self.token} if self.token else {"user.name": self.user}
        query = urllib.parse.urlencode({"op": operation, **identity, **parameters})
        base = self.urls[self._active % len(self.urls)]
        with contextlib.closing(_connection(base)) as connection:
            target = f"{urllib.parse.urlsplit(base).path.rstrip('/')}{_PREFIX}{urllib.parse.quote(path)}?{query}"
            return _answered(connection, method, target, None, {})


def _connection(url: str) -> http.client.HTTPConnection:
    """Connect, with a bound; answers have a bound of their own."""
    split = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
    connection = kind(split.hostname or "", split.port, timeout=CONNECT_S)
    connection.connect()
    connection.sock.settimeout(ANSWER_S)
    return connection


def _answered(
    connection: http.client.HTTPConnection, method: str, target: str, data: bytes | None, headers: Mapping[str, str]
) -> WebHdfsAnswer:
    """Send a request and read its answer. Raises Refusal."""
    connection.request(method, target, data, dict(headers))
    response = connection.getresponse()
    return answer_of(response)


def answer_of(response: http.client.HTTPResponse) -> WebHdfsAnswer:
    """Read an answer. Raises Refusal for a status that is no success."""
    body = response.read(ANSWER_BYTES_MAX + 1)
    if len(body) > ANSWER_BYTES_MAX:
        raise FileSystemError(f"the answer is larger than {ANSWER_BYTES_MAX:,} bytes")
    if response.status >= 400:
        raise refusal(response.status, body)
    return WebHdfsAnswer(response.status, response.headers.get("Location", ""), body)
