"""The pipelines that `headwater pipeline init` writes are correct, and their sample records belong to them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from sqlglot import exp

from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.plan import make_plan
from headwater.pipelines.sql_text.shape import parsed
from headwater.pipelines.starters import DEFAULT_TEMPLATE, PIPELINE_FILE, TEMPLATES, Starter, fill
from headwater.pipelines.starters.template import PARTITIONS
from headwater.pipelines.validation.pipeline_file import load


def written(starter: Starter, folder: Path) -> Loaded:
    for path, text in starter.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return load(str(folder / PIPELINE_FILE), environ={})


@pytest.mark.parametrize("name", ["shop", "my-shop_2"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_has_neither_problems_nor_warnings(tmp_path: Path, template: str, name: str) -> None:
    starter = fill(TEMPLATES[template], name)
    loaded = written(starter, tmp_path)
    assert loaded.warnings == ()
    assert loaded.pipeline.pipeline == name
    assert make_plan(loaded).stages
    assert {test.stage for test in loaded.pipeline.tests} == {stage.name for stage in loaded.pipeline.stages}
    assert "@" not in "".join(starter.commands)
    assert not [path for path, text in starter.files.items() if "@NAME@" in text or "@FILE@" in text]


@pytest.mark.parametrize("template", TEMPLATES)
def test_samples_are_records_of_declared_topics(tmp_path: Path, template: str) -> None:
    chosen = TEMPLATES[template]
    topics = written(fill(chosen, "shop"), tmp_path).pipeline.topics
    for sample in chosen.samples:
        declared = topics[sample.topic.replace("@NAME@", "shop")]
        assert declared.partitions == PARTITIONS
        assert tuple(f"{name}={value}" for name, value in declared.configs.items()) == sample.configs
        assert sample.records.endswith("\n")
        for line in sample.records.splitlines():
            key, separator, value = line.partition("\t")
            assert bool(separator) == sample.is_keyed
            assert isinstance(json.loads((value or "{}") if separator else key), dict)


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_is_written_of_old_samples_is_not_deleted_by_retention(tmp_path: Path, template: str) -> None:
    stages = written(fill(TEMPLATES[template], "shop"), tmp_path).pipeline.stages
    assert [sink.topic for stage in stages for sink in stage.topic_sinks if sink.timestamp is not None] == []


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_commands_survive_a_shell_and_end_with_a_query(template: str) -> None:
    *_, run, query = fill(TEMPLATES[template], "shop", "my folder").commands
    assert shlex.split(run) == ["headwater", "pipeline", "run", "my folder/pipeline.yaml"]
    assert isinstance(parsed(shlex.split(query)[-1]), exp.Query)


def test_the_default_is_a_template() -> None:
    assert DEFAULT_TEMPLATE in TEMPLATES
