"""The list of a node's processes in its data folder, for commands on the same machine."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any, Final

from headwater.supervisor import Child

#: Name of the file in the data folder.
PROCESS_LIST: Final = "processes.json"
LIST_BYTES_MAX: Final = 65_536


def write_process_list(data_dir: str, children: Mapping[str, Child]) -> None:
    """Replace the list by the children that are ready; without room on the disk it stays as it is.

    One thread at a time: the list is written to one temporary file first.
    """
    processes = {
        name: {"pid": child.pid, "host": child.addresses["host"], "port": child.addresses["port"]}
        for name, child in children.items()
        if child.addresses is not None and "port" in child.addresses  # an archiver listens on none
    }
    path = os.path.join(data_dir, PROCESS_LIST)
    with contextlib.suppress(OSError):
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump({"supervisor": os.getpid(), "processes": processes}, file)
        os.replace(path + ".tmp", path)


def remove_process_list(data_dir: str) -> None:
    """Remove the list at a stop, unless it is that of another supervisor, which has the folder."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if _read(data_dir)["supervisor"] == os.getpid():
            os.remove(os.path.join(data_dir, PROCESS_LIST))


def read_process_list(data_dir: str) -> dict[str, dict[str, Any]]:
    """Return the processes by name, each with `pid`, `host` and `port`; empty if their supervisor does not run."""
    try:
        found = _read(data_dir)
        os.kill(int(found["supervisor"]), 0)
        return {str(name): dict(each) for name, each in found["processes"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _read(data_dir: str) -> Any:
    with open(os.path.join(data_dir, PROCESS_LIST), encoding="utf-8") as file:
        return json.loads(file.read(LIST_BYTES_MAX))
