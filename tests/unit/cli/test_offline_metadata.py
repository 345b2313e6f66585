"""`--data`: the metadata of a folder that no broker uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.cli.shell.administration import offline
from headwater.cli.shell.errors import CliError
from headwater.logtier.controller.controller import Controller
from headwater.logtier.metadata.image import MetadataCache


async def nothing(controller: Controller, metadata: MetadataCache) -> None:
    raise AssertionError("not called")


def test_a_folder_of_a_clusters_broker_gets_no_metadata_of_its_own(tmp_path: Path) -> None:
    """They would be another cluster's, and the change would reach no broker."""
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=d\n")
    with pytest.raises(CliError, match="it has no metadata"):
        offline("user", str(tmp_path), nothing)
    assert [each.name for each in tmp_path.iterdir()] == ["meta.properties"]
