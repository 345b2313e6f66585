"""Files that declare topics without stages, such as those of loads and archives. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import Field, ValidationError, field_validator

from headwater.pipelines.definition.includes import ReadFile
from headwater.pipelines.definition.loaded import Loaded
from headwater.pipelines.definition.mistakes import problems_of
from headwater.pipelines.definition.model import Model, named_topics
from headwater.pipelines.definition.pipeline import Pipeline, SparkConf, Variables, variables_as_text
from headwater.pipelines.definition.secret_text import Secrets
from headwater.pipelines.definition.topics import Registry, Topic
from headwater.pipelines.definition.variables import resolved, substitute
from headwater.pipelines.definition.yaml_source import read
from headwater.pipelines.errors import PipelineError, Problem, nearest

__all__ = ["TopicFile", "parse_topic_file"]


class TopicFile(Model):
    """What such files have in common."""

    variables: Variables = Field(default_factory=dict, description="values of `${name}`; `--set name=value` overrides")
    registry: Registry | None = Field(default=None, description="schema registry, as in a pipeline")
    spark: SparkConf = Field(default_factory=dict, description="Spark settings; `--conf` takes precedence")
    topics: dict[str, Topic] = Field(default_factory=dict, description="declared topics, as in a pipeline")

    _texts = field_validator("variables", mode="before")(variables_as_text)

    _topic_names = field_validator("topics")(named_topics)


_File = TypeVar("_File", bound=TopicFile)


def parse_topic_file(
    model: type[_File],
    kind: str,
    text: str,
    file: str,
    variables: Mapping[str, str],
    folder: str,
    environ: Mapping[str, str],
    read_file: ReadFile,
) -> tuple[_File, Loaded]:
    """Check a file's text. Returns its content, and a pipeline without stages that declares its topics.

    `kind` is the key that such a file has: `loads`; `read_file` reads a secret's file. Raises PipelineError with every
    problem.
    """
    document = read(text, file)
    if not isinstance(document.values, dict):
        raise PipelineError([document.problem((), f"a file of {kind} is a mapping", f"start with `{kind}:`")])
    own = document.values.get("variables")
    values = {str(n): "" if v is None else str(v) for n, v in own.items()} if isinstance(own, dict) else {}
    places = {name: ("variables", name) for name in values}
    used = substitute(document, resolved(document, values | dict(variables), places), skip=frozenset({"variables"}))
    problems = [
        Problem(file, 0, 0, f"--set {name}", f"the file has no variable ${{{name}}}", nearest(name, sorted(used)))
        for name in sorted(variables.keys() - used - values.keys())
    ]
    secrets = Secrets(environ, read_file)
    try:
        found = model.model_validate(document.values, context={"secrets": secrets})
    except ValidationError as error:
        raise PipelineError(problems + problems_of(error, document)) from None
    if problems:
        raise PipelineError(problems)
    pipeline = Pipeline.model_construct(
        pipeline=kind,
        include=(),
        variables={},
        environments={},
        registry=found.registry,
        spark=found.spark,
        topics=found.topics,
        tables={},
        stages=(),
        tests=(),
    )
    return found, Loaded(pipeline, document, folder, (), "", secrets)
