from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.publishing import table_versions
from headwater.pipelines.publishing.errors import PublishRefused
from headwater.pipelines.publishing.table_versions import commit_hash


def test_the_hash_is_of_the_whole_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_versions, "READ_BYTES", 4)
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / "00000000000000000012.json").write_bytes(b"0123456789")
    for path in (str(tmp_path), f"file:{tmp_path}"):
        assert commit_hash(LocalFiles(), path, 12) == hashlib.sha256(b"0123456789").hexdigest()
    with pytest.raises(PublishRefused, match="no commit of version 11"):
        commit_hash(LocalFiles(), str(tmp_path), 11)
