from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from headwater.pipelines.definition import JdbcTable, Loaded, Password, SecretMissingError, Secrets, SecretText
from headwater.pipelines.definition.plan import make_plan
from headwater.pipelines.errors import PipelineError, Problem
from headwater.pipelines.validation.pipeline_file import load as load_file

SECRET = "hunter2-of-the-test"
TEXT = """\
pipeline: p
registry: {url: "http://r:8081", username: me, password: "${env:PW}"}
spark: {spark.hadoop.fs.s3a.secret.key: "${env:PW}", spark.plain: 7}
topics: {a: {value: string}}
tables:
  t:
    jdbc: "jdbc:postgresql://u:${env:PW}@db/x"
    table: t
    password: "${file:db.password}"
    options: {fetchsize: 100, sslpassword: plainly-written}
stages:
  - {name: one, from: {topic: a}, to: [{jdbc: "jdbc:derby:x;password=${env:PW}", table: t}]}
  - {name: two, from: {topic: a}, sql: SELECT a.* FROM a CROSS JOIN t, to: {topic: b}}
"""


def read(path: str) -> str:
    if path != "db.password":
        raise FileNotFoundError(2, "No such file or directory")
    return SECRET + "-in-a-file\n"


@pytest.fixture
def loaded(load: Callable[..., Loaded]) -> Loaded:
    return load(TEXT, environ={"PW": SECRET}, read_file=read)


def table(loaded: Loaded) -> JdbcTable:
    found = loaded.pipeline.tables["t"]
    assert isinstance(found, JdbcTable)
    return found


def test_a_secret_is_what_the_environment_or_a_file_holds(loaded: Loaded) -> None:
    assert table(loaded).jdbc.reveal() == f"jdbc:postgresql://u:{SECRET}@db/x"
    password = table(loaded).password
    assert password is not None
    assert password.reveal() == SECRET + "-in-a-file"
    assert loaded.pipeline.spark["spark.hadoop.fs.s3a.secret.key"].reveal() == SECRET
    assert loaded.pipeline.spark["spark.plain"].reveal() == "7"


@pytest.mark.parametrize("shown", [repr, str, lambda x: json.dumps(make_plan(x).as_dict()), lambda x: repr(x.pipeline)])
def test_no_secret_is_in_a_plan_or_a_text_of_the_pipeline(loaded: Loaded, shown: Callable[[Loaded], str]) -> None:
    text = shown(loaded)
    assert SECRET not in text
    assert "plainly-written" not in text


def test_a_plan_shows_the_reference(loaded: Loaded) -> None:
    (sink,) = make_plan(loaded).stages[0].writes
    assert sink.target == "t of jdbc:derby:x"
    assert str(table(loaded).jdbc) == "jdbc:postgresql://db/x"
    assert SECRET not in json.dumps(loaded.pipeline.model_dump(mode="json"))


def test_messages_of_other_programs_lose_the_secrets_in_them(loaded: Loaded) -> None:
    problem = loaded.problem((), f"login failed for u:{SECRET} and {SECRET}-in-a-file")
    assert problem.message == "login failed for u:${env:PW} and ${file:db.password}"


def test_passwords_that_stand_in_the_file_are_not_shown(load: Callable[..., Loaded]) -> None:
    text = TEXT.replace("${env:PW}", "written").replace("${file:db.password}", "written-too")
    loaded = load(text)
    for shown in (repr(loaded.pipeline), json.dumps(make_plan(loaded).as_dict())):
        assert "written" not in shown
    assert table(loaded).jdbc.reveal() == "jdbc:postgresql://u:written@db/x"
    assert str(table(loaded).jdbc) == "jdbc:postgresql://db/x"


def test_a_secret_that_is_missing_is_a_warning_for_a_check_and_a_problem_for_a_run(load: Callable[..., Loaded]) -> None:
    loaded = load(TEXT)
    hint = "paths are relative to the pipeline's own folder"
    assert [str(warning) for warning in loaded.warnings] == [
        "orders.yaml:2:58: registry.password: ${env:PW}: the environment has no variable PW; export PW",
        f"orders.yaml:9:15: tables.t.password: ${{file:db.password}}: the file db.password cannot be read; {hint}",
    ]
    with pytest.raises(PipelineError, match="the environment has no variable PW"):
        loaded.require_secrets()
    with pytest.raises(SecretMissingError, match=r"no value for jdbc:postgresql://db/x"):
        table(loaded).jdbc.reveal()


def test_nothing_is_missing_where_every_secret_is_there(loaded: Loaded) -> None:
    assert loaded.warnings == ()
    loaded.require_secrets()


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("value: string", 'value: "${env:PW}"', "topics.a.value"),
        ("{topic: a}", '{topic: "${env:PW}"}', "stages[0].from.topic"),
        (", table: t}]}", ", table: t, when: \"value = '${env:PW}'\"}]}", "stages[0].to[0].when"),
        ("from:", "sql: \"SELECT '${env:PW}' FROM a\", from:", "stages[0].sql"),
        ("{value: string}", '{value: string, configs: {x: "${env:PW}"}}', "topics.a.configs"),
        ('url: "http://r:8081"', 'url: "http://r:8081", ca: "${env:PW}"', "registry.ca"),
        ("table: t\n", 'table: "${file:db.password}"\n', "tables.t.table"),
    ],
)
def test_a_secret_where_it_would_be_shown_is_refused(
    problems: Callable[..., list[Problem]], old: str, new: str, field: str
) -> None:
    found = problems(TEXT.replace(old, new, 1), environ={"PW": SECRET}, read_file=read)
    assert any(p.field == field and "a secret cannot be used here" in p.message for p in found), found
    assert not any(SECRET in str(problem) or "\0" in str(problem) for problem in found)


def test_a_variable_may_hold_a_secret(load: Callable[..., Loaded]) -> None:
    text = "variables: {pw: '${env:PW}', host: db, url: 'jdbc:x://${host}'}\n" + TEXT.replace(
        "${env:PW}@db", "${pw}@db"
    )
    loaded = load(text, environ={"PW": SECRET}, read_file=read)
    assert table(loaded).jdbc.reveal() == f"jdbc:postgresql://u:{SECRET}@db/x"
    assert SECRET not in repr(loaded.pipeline)


def test_an_escaped_reference_is_no_reference(load: Callable[..., Loaded]) -> None:
    loaded = load(TEXT.replace("plainly-written", "'$${env:PW}'"), environ={"PW": SECRET}, read_file=read)
    assert table(loaded).options["sslpassword"].reveal() == "${env:PW}"


def test_a_reference_that_names_nothing_is_told(problems: Callable[..., list[Problem]]) -> None:
    (problem,) = problems(TEXT.replace("${file:db.password}", "${file:}"))
    assert (problem.field, problem.message) == ("tables.t.password", "${file:} names nothing")


def test_variables_that_name_each_other_are_told(problems: Callable[..., list[Problem]]) -> None:
    (problem,) = problems("variables: {a: '${b}', b: '${a}'}\n" + TEXT)
    assert problem.message == "the variables form a cycle: a -> b -> a"
    assert (problem.line, problem.field) == (1, "variables.a")


def test_short_values_are_not_searched_for_since_any_text_has_them() -> None:
    secrets = Secrets({"N": "1"}, read)
    secrets.look_up("env", "N")
    assert secrets.redacted("line 1") == "line 1"


def test_files_of_secrets_are_seen_from_the_pipelines_folder(tmp_path: Path) -> None:
    (tmp_path / "db.password").write_text(SECRET + "\n")
    path = tmp_path / "p.yaml"
    path.write_text(TEXT)
    password = table(load_file(str(path), environ={"PW": "x"})).password
    assert password is not None
    assert password.reveal() == SECRET


def test_secrets_travel_to_other_processes_without_being_shown() -> None:
    password = pickle.loads(pickle.dumps(Password.of(SECRET, is_secret=True)))
    assert password.reveal() == SECRET
    assert repr(password) == "Password('***')"
    assert asdict(Problem("f", 0, 0, "", str(SecretText.of("plain"))))["message"] == "plain"
