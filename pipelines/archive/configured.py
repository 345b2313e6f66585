"""Which archives there are: those that a file declares, and those that topic configs enable. Pure.

The file wins: of a topic that `archive.topics` names, the configs are not used, and a topic that its `topics` declare
has the format that is declared there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from headwater.pipelines.archive.archive_file import (
    ArchivedTopic,
    DeclaredArchives,
    TopicArchiveSpec,
    archive_spec,
    overlap,
)
from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.definition import FROM_REGISTRY, Loaded
from headwater.pipelines.definition.topics import Topic
from headwater.pipelines.errors import nearest

__all__ = [
    "CONFIGS",
    "ENABLE",
    "TABLE",
    "VALUE",
    "ConfiguredTopic",
    "KnownArchives",
    "RefusedArchive",
    "ValueFormatAnswer",
    "chosen_archives",
    "decide_archives",
]

ENABLE: Final = "headwater.archive.enable"
TABLE: Final = "headwater.archive.table"
VALUE: Final = "headwater.archive.value"
CONFIGS: Final = (ENABLE, TABLE, VALUE)


@dataclass(frozen=True, slots=True)
class ConfiguredTopic:
    """The configs of a topic that enable its archive; `table` is '' for the topic's name below the root."""

    table: str = ""
    value: str = "raw"

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> ConfiguredTopic | None:
        """By a topic's configs; None if they enable no archive.

        >>> ConfiguredTopic.of({"headwater.archive.enable": "true", "headwater.archive.value": "string"})
        ConfiguredTopic(table='', value='string')
        >>> ConfiguredTopic.of({"headwater.archive.table": "/lake/t"})
        """
        if configs.get(ENABLE) != "true":
            return None
        return cls(configs.get(TABLE, ""), configs.get(VALUE, "raw"))

    def __str__(self) -> str:
        table = f", {TABLE}={self.table}" if self.table else ""
        return f"{ENABLE}=true{table}, {VALUE}={self.value}"


@dataclass(frozen=True, slots=True)
class ValueFormatAnswer:
    """What a registry has said of a topic's values: a format, or why none is known."""

    value: str = ""
    fault: str = ""
    is_user_error: bool = True


@dataclass(frozen=True, slots=True)
class RefusedArchive:
    """Why a topic whose configs enable an archive has none. `is_user_error`: only a change of declarations helps."""

    reason: str
    is_user_error: bool = True


@dataclass(frozen=True, slots=True)
class KnownArchives:
    """The archives that there are.

    Attributes:
        specs: The archives: those of the file in its order, then those of topic configs by name.
        loaded: Declares the values of their topics.
        refused: Topics whose configs enable an archive that cannot be.
        overruled: Topics that the file names and whose configs enable an archive as well.
    """

    specs: tuple[TopicArchiveSpec, ...]
    loaded: Loaded
    refused: Mapping[str, RefusedArchive] = field(default_factory=dict)
    overruled: frozenset[str] = frozenset()


def decide_archives(
    declared: DeclaredArchives,
    configured: Mapping[str, ConfiguredTopic],
    formats: Mapping[str, ValueFormatAnswer],
    present: Collection[str] = (),
) -> KnownArchives:
    """Decide which archives there are.

    Args:
        configured: The topics whose configs enable an archive.
        formats: What the registry says of those whose `value` is `registry`.
        present: Topics whose archives are running: of two tables in one place, theirs stays.
    """
    named = {each.topic for each in declared.specs}
    values = declared.loaded.pipeline.topics
    topics: dict[str, Topic] = {}
    refused: dict[str, RefusedArchive] = {}
    found: list[TopicArchiveSpec] = []
    for topic, configs in sorted(configured.items()):
        if topic in named:
            continue
        own = None if topic in values else _declared_value(configs, formats.get(topic, ValueFormatAnswer()))
        try:
            spec = _spec(declared, topic, configs)
        except ArchiveError as error:
            refused[topic] = _refusal(configs, str(error))
            continue
        if isinstance(own, RefusedArchive):
            refused[topic] = _refusal(configs, own.reason, is_user_error=own.is_user_error)
            continue
        found.append(spec)
        if own is not None:
            topics[topic] = own
    placed = list(declared.specs)
    # Tables below the root are in nobody's way, so that a table that is named elsewhere cannot displace one of them.
    for each in sorted(found, key=lambda spec: (bool(configured[spec.topic].table), spec.topic not in present)):
        reason = overlap(each, placed)
        if reason:
            refused[each.topic] = _refusal(configured[each.topic], reason)
            topics.pop(each.topic, None)
        else:
            placed.append(each)
    specs = (*declared.specs, *sorted(placed[len(declared.specs) :], key=lambda spec: spec.topic))
    pipeline = declared.loaded.pipeline.model_copy(update={"topics": {**values, **topics}})
    return KnownArchives(
        specs, dataclasses.replace(declared.loaded, pipeline=pipeline), refused, frozenset(named & configured.keys())
    )


def _refusal(configs: ConfiguredTopic, reason: str, *, is_user_error: bool = True) -> RefusedArchive:
    return RefusedArchive(f"{reason} (the topic's configs: {configs})", is_user_error)


def _spec(declared: DeclaredArchives, topic: str, configs: ConfiguredTopic) -> TopicArchiveSpec:
    """Raises ArchiveError."""
    if not configs.table and declared.declaration.root is None:
        raise ArchiveError(f"there is no root below which its table could be: set {TABLE}, or name a root")
    if configs.table and not re.match(r"/|[a-z][a-z0-9+.-]*:/", configs.table):
        raise ArchiveError(f"{TABLE} is an absolute path or a URL, and not {configs.table!r}")
    spec = archive_spec(declared.declaration, topic, ArchivedTopic(table=configs.table or None), declared.loaded)
    value = declared.loaded.pipeline.topics[topic].value if topic in declared.loaded.pipeline.topics else configs.value
    # `raw: true` for all topics is said of values that are decoded; here the column `value` has the bytes anyway.
    return dataclasses.replace(spec, configs=str(configs), raw=spec.raw and value != "raw")


def _declared_value(configs: ConfiguredTopic, answer: ValueFormatAnswer) -> Topic | RefusedArchive | None:
    """The declaration of a topic's values; None for bytes, which need none."""
    if configs.value == "raw":
        return None
    if configs.value == "string":
        return Topic.model_validate({"value": "string"})
    if configs.value != "registry":
        return RefusedArchive(f"{VALUE} is raw, string or registry here, and not {configs.value!r}")
    if not answer.value:
        return RefusedArchive(answer.fault or "no registry was asked", answer.is_user_error)
    return Topic.model_validate({"value": answer.value, "schema": FROM_REGISTRY})


def chosen_archives(known: KnownArchives, topics: Collection[str], where: str = "") -> KnownArchives:
    """The archives of some topics; all without any.

    Raises ArchiveError for a topic without an archive, unless `where`, which declares them for people, is ''.
    """
    if not topics:
        return known
    names = [each.topic for each in known.specs]
    for topic in topics:
        if where and topic not in names and topic not in known.refused:
            hint = nearest(topic, sorted(names))
            raise ArchiveError(
                f"{where} has no archive of the topic '{topic}', and its config {ENABLE} is not true"
                + (f"; {hint}" if hint else "")
            )
    by_name = {each.topic: each for each in known.specs}
    return dataclasses.replace(
        known,
        specs=tuple(by_name[topic] for topic in topics if topic in by_name),
        refused={topic: why for topic, why in known.refused.items() if topic in topics},
    )
