"""A broker reaches time, chance, files, threads and processes through its machine, which a simulation replaces."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

LOG_TIER = Path("logtier")
#: The interfaces and their real implementations; the raw client, which is no part of a broker.
OUTSIDE = (LOG_TIER / "runtime", LOG_TIER / "client")
#: Modules of which each name reaches past the machine; of `random`, only `Random` is a generator that is passed in.
MODULES = {
    "concurrent.futures",
    "fcntl",
    "multiprocessing",
    "random",
    "resource",
    "secrets",
    "select",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}
HARMLESS = {"random.Random", "os.cpu_count", "os.environ", "os.fspath", "os.path", "os.pathsep", "os.strerror"}
#: Calls of objects and modules that reach past the machine under any module's name.
METHODS = {"create_subprocess_exec", "create_subprocess_shell", "fileno", "open_connection", "start_server", "uuid4"}
#: What a module uses all the same, each with its reason.
ALLOWED = {
    # Durations, for metrics and quotas of request time.
    "handlers/dispatcher.py": {"time"},
    "handlers/loop_time.py": {"time"},
    # The process of the cleaner, and the code that runs there.
    "log/cleaning/cleaner_process.py": {"create_subprocess_exec"},
    "log/cleaning/cleaner_rewrite.py": {"os.urandom"},
    "log/cleaning/cleaner_worker.py": {
        "os._exit",
        "os.dup",
        "os.dup2",
        "os.nice",
        "os.read",
        "os.utime",
        "os.write",
        "signal",
        "threading",
        "time",
    },
    # kazoo's threads and sockets; a simulated store replaces all of it.
    "metadata/zookeeper/kazoo_handler.py": {"socket", "threading", "time"},
    # Its HTTP server has a thread of its own; the process id is one of the metrics of the process.
    "metrics/endpoint.py": {"concurrent.futures", "os.getpid", "threading"},
    # Names of hosts: this machine's own, and those with their own limits.
    "network/listeners.py": {"socket"},
    # The descriptor for sendfile: only the network that sends the slice looks at it.
    "protocol/fetch_response.py": {"fileno"},
    # Files of the user: keys, certificates, properties of a client.
    "config/client_properties.py": {"open"},
    "security/key_files.py": {"open", "os.MFD_CLOEXEC", "os.close", "os.memfd_create", "os.write", "tempfile"},
    "security/tls.py": {"os.stat"},
    # The deadline of one HTTP request, in a thread.
    "security/jwks.py": {"time"},
    # Compiled for readers of records; a broker never imports them.
    "records/columns_compiled.py": {
        "os.W_OK",
        "os.X_OK",
        "os.access",
        "os.getuid",
        "os.lstat",
        "os.makedirs",
        "tempfile",
    },
    "records/columns_encode.py": {"random"},
}


def past_the_machine(text: str) -> Iterator[str]:
    """What a module uses of the machine without its interfaces."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES - {"random"})
        elif isinstance(node, ast.ImportFrom):
            if node.module in MODULES - {"random"}:
                yield node.module
            elif node.module in ("os", "random"):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                yield from names - HARMLESS
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name not in HARMLESS and name.startswith("random."):
                yield "random"
            elif name not in HARMLESS and name.startswith("os.") and name.count(".") == 1:
                yield name
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id == "open":
                yield "open"
            elif isinstance(called, ast.Attribute) and called.attr in METHODS:
                yield called.attr


def test_a_broker_reaches_its_machine_through_interfaces_only(texts: dict[Path, str]) -> None:
    found = {}
    for path, text in texts.items():
        if path.suffix == ".py" and path.is_relative_to(LOG_TIER) and not any(map(path.is_relative_to, OUTSIDE)):
            names = set(past_the_machine(text))
            if names:
                found[str(path.relative_to(LOG_TIER))] = names
    assert found == ALLOWED


def test_what_reaches_past_the_machine_is_found() -> None:
    assert set(past_the_machine("import time\nfrom secrets import token_bytes\n")) == {"time", "secrets"}
    assert set(past_the_machine("import os\nos.urandom(3)\nopen('f')\n")) == {"os.urandom", "open"}
    assert set(past_the_machine("import random\nrandom.random()\n")) == {"random"}
    assert set(past_the_machine("import random\ndef f(prng: random.Random): prng.random()\n")) == set()
    assert set(past_the_machine("uuid.uuid4()\nfile.fileno()\nos.path.join('a')\n")) == {"uuid4", "fileno"}
