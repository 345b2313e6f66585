"""The `txn` actions of a Delta table by appId, read from its log: delta-rs tells one only to whom knows its name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["chosen_checkpoint", "table_marks"]

_LOG: Final = "_delta_log"
# Classic, in parts, and of the second kind, whose parts beside it have files only.
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")


def chosen_checkpoint(names: list[str], version: int) -> tuple[int, list[str]]:
    """The newest complete checkpoint that is not after a version, and its files; -1 without one. Pure.

    >>> part = "{:020}.checkpoint.{:010}.{:010}.parquet".format
    >>> chosen_checkpoint([part(8, 1, 2), part(8, 2, 2), part(9, 1, 2)], 9)[0]
    8
    """
    whole: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], list[str]] = {}
    for name in sorted(names):
        found = _CHECKPOINT.fullmatch(name)
        if found is None or int(found[1]) > version:
            continue
        if found[2] is None:
            whole[int(found[1])] = [name]
        else:
            parts.setdefault((int(found[1]), int(found[3])), []).append(name)
    for (at, count), files in parts.items():
        if len(files) == count:
            whole.setdefault(at, files)
    newest = max(whole, default=-1)
    return newest, whole.get(newest, [])


def table_marks(table: DeltaTable, prefix: str) -> Mapping[str, int]:
    """The versions of the appIds that begin so, as of the table's version. Raises OSError and ValueError."""
    import pyarrow.fs as pa_fs
    from deltalake.fs import DeltaStorageHandler

    files = pa_fs.PyFileSystem(DeltaStorageHandler.from_table(table._table))  # type: ignore[arg-type] # its own
    found = files.get_file_info(pa_fs.FileSelector(_LOG))
    names = [each.base_name for each in found]
    version = table.version()
    begin, checkpoint = chosen_checkpoint(names, version)
    marks: dict[str, int] = {}
    for name in checkpoint:
        marks |= {app_id: at for app_id, at in _of_checkpoint(files, f"{_LOG}/{name}") if app_id.startswith(prefix)}
    for at in range(begin + 1, version + 1):
        marks |= {app_id: at for app_id, at in _of_commit(files, f"{_LOG}/{at:020}.json") if app_id.startswith(prefix)}
    return marks


def _of_checkpoint(files: Any, path: str) -> Iterator[tuple[str, int]]:
    import pyarrow.parquet as pq

    if path.endswith(".json"):
        yield from _of_commit(files, path)
        return
    with files.open_input_file(path) as file:
        for each in pq.read_table(file, columns=["txn"])["txn"].to_pylist():
            if each is not None and each["appId"] is not None:
                yield each["appId"], each["version"]


def _of_commit(files: Any, path: str) -> Iterator[tuple[str, int]]:
    with files.open_input_stream(path) as file:
        for line in file.read().splitlines():
            if b'"txn"' in line and (each := json.loads(line).get("txn")) is not None:
                yield each["appId"], each["version"]
