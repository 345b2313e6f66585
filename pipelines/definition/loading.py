"""Loads a pipeline: parses a text to `Loaded`, or reports every problem at once. Pure: the file reader is an argument.

Order: YAML, included files, the environment, variables, fields (`Pipeline`), references between parts
(`headwater.pipelines.definition.checks`). `headwater.pipelines.validation.pipeline_file` does the same for a file on
disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import ValidationError

from headwater.pipelines.definition.includes import ReadFile, include
from headwater.pipelines.definition.loaded import Loaded
from headwater.pipelines.definition.mistakes import problems_of
from headwater.pipelines.definition.pipeline import Pipeline
from headwater.pipelines.definition.secret_text import Secrets
from headwater.pipelines.definition.variables import resolved, substitute
from headwater.pipelines.definition.yaml_source import Document, Loc, read
from headwater.pipelines.errors import PipelineError, Problem, nearest

NO_TOPICS: frozenset[str] = frozenset()
_NOT_SUBSTITUTED = frozenset({"variables", "environments", "include"})


def parse(
    text: str,
    file: str,
    variables: Mapping[str, str] | None = None,
    existing_topics: frozenset[str] = NO_TOPICS,
    folder: str = "",
    environment: str = "",
    environ: Mapping[str, str] | None = None,
    read_file: ReadFile | None = None,
    check_more: Callable[[Loaded], list[Problem]] | None = None,
) -> Loaded:
    """Check a pipeline's text. Raises PipelineError with every problem.

    `variables` override the environment's and the file's own; `environment` selects one of the file's `environments`.
    `existing_topics` are the broker's topics, which a stage may read undeclared. `environ` and `read_file` resolve the
    text's references (secrets, included files). `check_more` yields the problems of further checks.
    """
    from headwater.pipelines.definition.checks import check

    reader = read_file or _no_file
    secrets = Secrets(environ or {}, reader)
    loaded, problems = _parsed(text, file, variables or {}, environment, folder, secrets, reader)
    found, warnings = check(loaded, existing_topics)
    problems += found
    if check_more is not None:
        problems += check_more(loaded)
    if problems:
        raise PipelineError(problems)
    missing = [loaded.missing_secret(reference) for reference in secrets.missing()]
    return Loaded(loaded.pipeline, loaded.document, folder, (*warnings, *missing), environment, secrets)


def _no_file(path: str) -> str:
    raise FileNotFoundError(2, "no such file", path)


def _parsed(
    text: str,
    file: str,
    given: Mapping[str, str],
    environment: str,
    folder: str,
    secrets: Secrets,
    read_file: ReadFile,
) -> tuple[Loaded, list[Problem]]:
    document = read(text, file)
    if not isinstance(document.values, dict):
        raise PipelineError([document.problem((), "a pipeline is a mapping", "start with `pipeline: NAME`")])
    include(document, read_file)
    variables, places = _variables(document, environment, given)
    used = substitute(document, resolved(document, variables, places), skip=_NOT_SUBSTITUTED)
    known = {*places, *(name for name in variables if name not in given)}
    problems = []
    for name in sorted(set(given) - used - known):
        what, hint = f"the pipeline has no variable ${{{name}}}", nearest(name, sorted(used | known))
        problems.append(Problem(file, 0, 0, f"--set {name}", what, hint))
    try:
        pipeline = Pipeline.model_validate(document.values, context={"secrets": secrets})
    except ValidationError as error:
        raise PipelineError(problems + problems_of(error, document)) from None
    return Loaded(pipeline, document, folder, (), environment, secrets), problems


def _variables(document: Document, environment: str, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Loc]]:
    """Return the variables, with the positions of those in the file. Applies the environment's settings.

    The models refuse values that are not text.
    """
    values: dict[str, str] = {}
    places: dict[str, Loc] = {}
    sources: list[tuple[Loc, object]] = [(("variables",), document.values.get("variables"))]
    if environment:
        sources.append((("environments", environment, "variables"), _choose(document, environment)))
    for loc, listed in sources:
        for name, value in listed.items() if isinstance(listed, dict) else ():
            values[str(name)] = "" if value is None else str(value)
            places[str(name)] = (*loc, str(name))
    return values | dict(given), places


def _choose(document: Document, environment: str) -> object:
    """Apply the environment's settings and return its variables. Raises PipelineError for an unknown environment."""
    environments = document.values.get("environments")
    known = sorted(environments) if isinstance(environments, dict) else []
    if environment not in known:
        hint = nearest(environment, known) or "the pipeline has no environments"
        what = "there is no such environment"
        raise PipelineError([Problem(document.file, 0, 0, f"--env {environment}", what, hint)])
    chosen = environments[environment]
    if not isinstance(chosen, dict):
        return None  # the models report the problem
    if isinstance(chosen.get("registry"), dict):
        document.values["registry"] = chosen["registry"]
        document.take_marks(("environments", environment, "registry"), ("registry",))
    if isinstance(chosen.get("checkpoints"), str):
        document.values["checkpoints"] = chosen["checkpoints"]
        document.take_marks(("environments", environment, "checkpoints"), ("checkpoints",))
    if isinstance(chosen.get("spark"), dict) and isinstance(document.values.setdefault("spark", {}), dict):
        document.values["spark"] = document.values["spark"] | chosen["spark"]
        for name in chosen["spark"]:
            document.take_marks(("environments", environment, "spark", name), ("spark", name))
    return chosen.get("variables")
