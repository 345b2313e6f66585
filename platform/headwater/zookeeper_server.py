"""A ZooKeeper server of this machine, from the jars of pyspark: its files, its command line, its process."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from headwater.folder_lock import FolderInUseError, lock_folder
from headwater.java_runtime import find_java

#: A session is 2 to 20 ticks: brokers of one machine notice a death within seconds.
TICK_MS: Final = 1000
#: Folders of the server: its data, and the snapshots and transaction logs in it.
DATA_FOLDER: Final = "data"
FILES_FOLDER: Final = "version-2"
CONFIGURATION_FILE: Final = "zoo.cfg"
#: The largest heap of a server that holds the metadata of a cluster on one machine: besides the nodes it keeps the last
#: 500 transactions, each of which may have a megabyte when brokers of many partitions come and go.
HEAP: Final = "512m"
MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
POLL_S: Final = 0.02
#: Time for one answer to `srvr`.
ANSWER_S: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1


class ZooKeeperError(RuntimeError):
    """The server cannot run; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class ZooKeeperPlace:
    """Where a server keeps its data and listens.

    Attributes:
        jaas: A JAAS file with logins (DIGEST-MD5) in its section `Server`: sessions without a login are refused. Empty
            for none: everybody who reaches the port may read and write.
    """

    folder: str
    host: str
    port: int
    jaas: str = ""

    def configuration(self) -> str:
        """Return the contents of `zoo.cfg`.

        The server runs in the folder, and its data is named from there: Java reads the file as Latin-1 with escapes,
        and would find another path for a folder with a name such as `dåta`.

        >>> print(ZooKeeperPlace("/srv/zk", "127.0.0.1", 2181).configuration().splitlines()[0])
        dataDir=./data
        """
        login = {
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "sessionRequireClientSASLAuth": "true",
        }
        return "".join(
            f"{name}={value}\n"
            for name, value in {
                "dataDir": f"./{DATA_FOLDER}",
                "clientPort": self.port,
                "clientPortAddress": self.host,
                "tickTime": TICK_MS,
                "admin.enableServer": "false",
                "4lw.commands.whitelist": "srvr",
                # A snapshot and its log for each 100,000 changes: keep what a restart can need.
                "autopurge.snapRetainCount": 3,
                "autopurge.purgeInterval": 1,
                **(login if self.jaas else {}),
            }.items()
        )


def spark_jars() -> str:
    """Return the folder of pyspark's jars, without importing pyspark.

    Raises:
        ZooKeeperError: pyspark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ZooKeeperError("pyspark, whose jars include ZooKeeper, is not installed: pip install headwater")
    return os.path.join(os.path.dirname(spec.origin), "jars")


def server_logins(username: str, password: str) -> str:
    """Return the contents of a JAAS file with one login; letters and digits only."""
    assert (username + password).isalnum()
    return (
        "Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        f'  user_{username}="{password}";\n}};\n'
    )


def java_command(java: str, jars: str, configuration: str, jaas: str = "") -> list[str]:
    """Return the command line of the server. Only the jars that it needs are opened: all of Spark's take a second."""
    wanted = ("zookeeper", "netty", "slf4j", "log4j", "snappy", "metrics-core", "jline", "commons-cli", "jackson")
    class_path = sorted(name for name in os.listdir(jars) if name.startswith(wanted))
    if not any(name.startswith("zookeeper-") for name in class_path):
        raise ZooKeeperError(f"{jars} has no ZooKeeper: install the pyspark of Headwater's requirements")
    return [
        os.path.abspath(java),
        "-Dlog4j2.level=WARN",
        f"-Xmx{HEAP}",
        "-Xss512k",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *([f"-Djava.security.auth.login.config={jaas}"] if jaas else []),
        "-cp",
        os.pathsep.join(os.path.abspath(os.path.join(jars, name)) for name in class_path),
        MAIN_CLASS,
        configuration,
    ]


def free_port(host: str) -> int:
    """Return a port that nobody listens on now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class ZooKeeperProcess:
    """The server's process. It ends with this process (on Linux also after kill -9 of it)."""

    def __init__(self, place: ZooKeeperPlace) -> None:
        self.place = place
        self._process: subprocess.Popen[bytes] | None = None
        #: Held until this process ends, or `release`.
        self._lock = -1

    def start(self) -> None:
        """Write the configuration and start the server; it may not answer yet.

        Raises:
            ZooKeeperError: Java, the jars or the folder are missing, or another server uses the folder.
        """
        folder = self.place.folder
        java = find_java()
        if java is None:
            raise ZooKeeperError("there is no java; `headwater doctor` says how to install one")
        command = java_command(java, spark_jars(), CONFIGURATION_FILE, self.place.jaas)
        try:
            os.makedirs(os.path.join(folder, DATA_FOLDER), mode=0o700, exist_ok=True)
            # ZooKeeper locks nothing: two servers would write the same files. The server holds the lock, too.
            lock = self._lock = lock_folder(folder)
            _adopt_misread(os.path.abspath(os.path.join(folder, DATA_FOLDER)))
            with open(os.path.join(folder, CONFIGURATION_FILE), "w", encoding="utf-8") as file:
                file.write(self.place.configuration())
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops the brokers first
                pass_fds=(lock,),
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 (this process has one thread until it is ready)
            )
        except FolderInUseError as error:
            raise ZooKeeperError(str(error)) from None
        except OSError as error:
            raise ZooKeeperError(f"{folder}: {error.strerror}; check the path and its permissions") from None

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the server answers.

        Raises:
            ZooKeeperError: The process ended, or does not answer in time.
        """
        assert self._process is not None
        deadline_s = time.monotonic() + timeout_s
        while not _answers(self.place.host, self.place.port):
            if self._process.poll() is not None:
                raise ZooKeeperError(
                    f"ZooKeeper ended with exit code {self._process.returncode}; the lines above say why"
                )
            if time.monotonic() > deadline_s:
                raise ZooKeeperError(f"ZooKeeper does not answer after {timeout_s:.0f} s")
            time.sleep(POLL_S)

    def wait(self) -> int:
        """Wait for the end of the process; return its exit code."""
        assert self._process is not None
        return self._process.wait()

    def release(self) -> None:
        """Release the folder after the end of the process."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def terminate(self) -> None:
        """Ask the process to end."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()


def _adopt_misread(data: str) -> None:
    """Move the files of an earlier version to where they belong: it named the whole path, which Java misread."""
    misread = os.path.join(os.fsencode(data).decode("latin-1"), FILES_FOLDER)
    files = os.path.join(data, FILES_FOLDER)
    if not os.path.exists(files) and os.path.isdir(misread):
        os.rename(misread, files)


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), ANSWER_S) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while some := connection.recv(4096):
                answer += some
            return b"Mode:" in answer
    except OSError:
        return False


def die_with_parent(parent: int) -> None:
    """Make this process, a child of `parent`, end when its parent does; on Linux alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # A parent that ended before the call would never be told of, and the server, with the folder's lock, stay.
        if os.getppid() != parent:
            os._exit(1)
