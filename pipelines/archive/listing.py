"""Asks brokers and registry which archives topic configs declare."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Final

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.configs import described_topics, topic_configs
from headwater.logtier.client.errors import ClientError
from headwater.pipelines.analysis.topic_schemas import registered_format
from headwater.pipelines.archive.archive_file import DeclaredArchives
from headwater.pipelines.archive.configured import (
    CONFIGS,
    ENABLE,
    ConfiguredTopic,
    KnownArchives,
    ValueFormatAnswer,
    decide_archives,
)
from headwater.pipelines.archive.errors import ArchiveFailed
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition.topics import Registry
from headwater.pipelines.formats.registry_client import NotFoundError, RegistryAwayError, RegistryError
from headwater.pipelines.loads.offsets.log_state import client_of

__all__ = ["ArchiveListing"]

#: Of the questions to brokers: archives of a file need not wait for long.
LIST_TIMEOUT_MS: Final = 15_000


class ArchiveListing:
    """The archives of a declaration and of topic configs, each time it is asked. Used by one thread at a time.

    Args:
        find_registry: Asked for a registry's address when a topic needs one and the declaration has none.
    """

    def __init__(
        self, declared: DeclaredArchives, brokers: Brokers, find_registry: Callable[[], str | None] = lambda: None
    ) -> None:
        self._declared = declared
        self._brokers = brokers
        self._find_registry = find_registry
        #: Formats stay: a registry that does not answer ends no archive that has begun.
        self._formats: dict[str, ValueFormatAnswer] = {}

    def declared(self) -> KnownArchives:
        """The archives without those of topic configs."""
        return decide_archives(self._declared, {}, {})

    def now(self, present: Collection[str] = ()) -> KnownArchives:
        """The archives that there are now; `present` as in `decide_archives`. Raises ArchiveFailed."""
        configured = self._configured()
        values = self._declared.loaded.pipeline.topics
        named = {each.topic for each in self._declared.specs}
        asked = sorted(
            topic
            for topic, configs in configured.items()
            if configs.value == "registry" and topic not in values and topic not in named
        )
        formats = self._answers(asked)
        return decide_archives(self._declared, configured, formats, present)

    def _configured(self) -> dict[str, ConfiguredTopic]:
        try:
            client = dataclasses.replace(
                client_of(self._brokers), api_timeout_ms=LIST_TIMEOUT_MS, request_timeout_ms=LIST_TIMEOUT_MS
            )
            with ClusterClient(client) as cluster:
                enabled = topic_configs(cluster, tuple(cluster.topics()), ENABLE)
                # Asked again together: the values of one topic are then of one moment.
                found = described_topics(
                    cluster, tuple(topic for topic, value in enabled.items() if value == "true"), CONFIGS
                )
        except ClientError as error:
            raise ArchiveFailed(f"the configs of topics are not known: {error}") from error
        return {topic: own for topic, configs in found.items() if (own := ConfiguredTopic.of(configs)) is not None}

    def _answers(self, topics: Collection[str]) -> dict[str, ValueFormatAnswer]:
        fault: ValueFormatAnswer | None = None
        answers = {topic: self._formats[topic] for topic in topics if topic in self._formats}
        if len(answers) < len(topics):
            fault = self._require_registry()
        for topic in topics:
            if topic in answers:
                continue
            if fault is not None:  # a registry that does not answer takes its time for each topic
                answers[topic] = fault
                continue
            try:
                found = ValueFormatAnswer(registered_format(self._declared.loaded, topic))
            except (ValueError, RegistryError) as error:
                said = self._declared.loaded.redacted(str(error))
                is_user_error = isinstance(error, ValueError | NotFoundError)
                answers[topic] = ValueFormatAnswer(fault=said, is_user_error=is_user_error)
                if isinstance(error, ValueError | RegistryAwayError):  # as it is for all topics
                    fault = answers[topic]
                continue
            answers[topic] = self._formats[topic] = found
        return answers

    def _require_registry(self) -> ValueFormatAnswer | None:
        """Find a registry where none is declared; what is said if there is none."""
        loaded = self._declared.loaded
        if loaded.pipeline.registry is not None:
            return None
        url = self._find_registry()
        if url is None:
            return ValueFormatAnswer(fault="there is no schema registry: declare `registry:` in the file, or name one")
        registry = Registry.model_validate({"url": url}, context={"secrets": loaded.secrets})
        pipeline = loaded.pipeline.model_copy(update={"registry": registry})
        self._declared = dataclasses.replace(self._declared, loaded=dataclasses.replace(loaded, pipeline=pipeline))
        return None
