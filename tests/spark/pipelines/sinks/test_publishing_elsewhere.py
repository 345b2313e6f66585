"""A topic or a table that bears the name of another: made anew, or copied."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from headwater.pipelines.publishing.errors import PublishFailed
from tests.spark.pipelines.sinks.test_publishing import Publishing, make_versions, write_files

if TYPE_CHECKING:
    from tests.spark.pipelines.conftest import Lab

pytestmark = pytest.mark.slow


@pytest.fixture
def publishing(lab: Lab) -> Publishing:
    return Publishing(lab)


def test_a_topic_made_anew_while_it_is_published_to_gets_nothing(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("anew-meanwhile")
    folder = write_files(publishing.folder / "in", "parquet")

    def recreate(step: str) -> None:
        if step == "records_sent":
            lab.admin.delete_topics([topic])
            publishing.topic("anew-meanwhile")

    with pytest.raises(PublishFailed, match="was made anew while it was published to; nothing was committed"):
        publishing(folder, topic, recreate)
    assert lab.read(topic) == []


def test_a_copy_of_a_table_that_was_written_on_is_another_source(publishing: Publishing, lab: Lab) -> None:
    path = publishing.folder / "table"
    make_versions(lab, path, feed=False)
    topic = publishing.topic("copied")
    copy = publishing.folder / "copy"
    shutil.copytree(path, copy)
    assert publishing(path, topic).written == 12
    assert publishing(copy, topic).was_there, "the copy is the same so far"
    for table_, added in ((path, 100), (copy, 200)):
        lab.spark.sql(f"INSERT INTO delta.`{table_}` VALUES ({added}, 'n')")
    assert publishing(path, topic, version=5).written == 13
    assert publishing(copy, topic, version=5).written == 13
    assert publishing(path, topic, between=(4, 5)).written == 1
    assert publishing(copy, topic, between=(4, 5)).written == 1
    assert Counter(row["id"] for row in lab.values(topic) if row["id"] >= 100) == {100: 2, 200: 2}
