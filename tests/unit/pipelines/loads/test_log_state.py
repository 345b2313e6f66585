"""What a topic's log is when its configs may not be described: nobody guesses."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.logtier.client import configs
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.archive.table_modes import mode_of_new_table
from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.offsets import log_state
from headwater.pipelines.loads.offsets.log_state import is_compacted, keeps_all_records
from headwater.pipelines.loads.offsets.positions import parse_position
from headwater.pipelines.seam.marks import APPEND, UPSERT

NOBODY = "127.0.0.1:1"
SPEC = TopicArchiveSpec("flights", "/lake/f", parse_position("earliest"))
TOPIC_AUTHORIZATION_FAILED = 29


class Cluster:
    """A client of a broker that is not asked."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def any_connection(self) -> None:
        pass

    def retry(self, what: str, ask: Callable[[], Any], topics: Collection[str] = ()) -> Any:
        return ask()


def broker_says(monkeypatch: pytest.MonkeyPatch, policy: str | None) -> None:
    """Describe the topic's cleanup.policy; None: it may not be described."""
    found = [SimpleNamespace(name="cleanup.policy", value=policy)] if policy is not None else []
    code = TOPIC_AUTHORIZATION_FAILED if policy is None else 0
    answer = SimpleNamespace(error_code=code, error_message=None, resource_name="flights", configs=found)
    monkeypatch.setattr(configs, "_describe", lambda *_: [answer])
    monkeypatch.setattr(log_state, "ClusterClient", Cluster)


@pytest.mark.parametrize(
    ("policy", "mode"), [("delete", APPEND), ("compact", UPSERT), ("compact,delete", UPSERT), ("", APPEND)]
)
def test_a_new_table_has_the_mode_of_the_topics_policy(monkeypatch: pytest.MonkeyPatch, policy: str, mode: str) -> None:
    broker_says(monkeypatch, policy)
    assert mode_of_new_table(SPEC, NOBODY) == mode
    assert is_compacted(NOBODY, "flights") == (mode == UPSERT)
    assert keeps_all_records(NOBODY, "flights") == (mode == APPEND, [])


def test_a_policy_that_may_not_be_described_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    broker_says(monkeypatch, None)
    said = "the cleanup.policy of flights may not be described (DescribeConfigs): grant it"
    with pytest.raises(LoadError) as asked:
        is_compacted(NOBODY, "flights")
    assert str(asked.value) == said
    with pytest.raises(ArchiveError) as refused:
        mode_of_new_table(SPEC, NOBODY)
    assert str(refused.value) == f"{said}, or give `mode`"
    assert keeps_all_records(NOBODY, "flights") == (False, [f"rows that the log lacks were not looked for: {said}"])
