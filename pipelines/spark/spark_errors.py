"""Spark's errors in one line, at the position in the pipeline's file that caused them."""

from __future__ import annotations

import re

from headwater.pipelines.datasource.errors import user_message
from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.yaml_source import Loc
from headwater.pipelines.errors import Problem

_NO_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem not found"
_NEEDS_S3A = (
    "s3a:// needs a module that Spark has not: add org.apache.hadoop:hadoop-aws:3.5.0 to spark.jars.packages "
    "(docs/how-to/hdfs_and_object_stores.md)"
)
_READ_FAILED = "[FAILED_READ_FILE"
_AWAITED = "Exception thrown in awaitResult"
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)+[\w$]+: (.*)$", re.MULTILINE)
#: The last line of a Python traceback; Spark's SQLSTATE may stand after it.
_RAISED = re.compile(r"(?!SQLSTATE)[A-Za-z_][\w.]*(Error|Exception|Warning)?: ")
#: Our own errors are lines for users.
_OWN_CLASS = re.compile(r"^headwater\.[\w.]+: ")
_SQL_PLACE = re.compile(r"[;(]?\s*\(?line (\d+),? pos (\d+)\)?")
_DELTA_CONFLICT = re.compile(r"\[DELTA_(CONCURRENT_\w+|PROTOCOL_CHANGED|METADATA_CHANGED)")


def first_line(error: BaseException) -> str:
    """An error's message in one line, without the plan, the SQLSTATE and the stack trace that Spark appends.

    >>> first_line(ValueError("[X] no such column. SQLSTATE: 42703; line 1 pos 7;\\n'Project ['a]\\n"))
    '[X] no such column.'
    >>> first_line(
    ...     ValueError("java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found")
    ... )
    ... # doctest: +ELLIPSIS
    's3a:// needs a module that Spark has not: add org.apache.hadoop:hadoop-aws:3.5.0 to spark.jars.packages ...'
    >>> first_line(ValueError("Traceback (most recent call last)\\nZeroDivisionError: no\\n\\nSQLSTATE: 38000"))
    'ZeroDivisionError: no'
    >>> first_line(
    ...     ValueError("An error occurred while calling o1.x.\\n: java.lang.StackOverflowError\\n\\tat a.B.c(D:1)")
    ... )
    'java.lang.StackOverflowError'
    >>> first_line(ValueError("Traceback (most recent call last)\\nheadwater.errors.DiskError: /lake is full"))
    '/lake is full'
    """
    cause = getattr(error, "_cause", None)
    if type(error).__name__.endswith("StreamingQueryException") and cause is not None:
        return first_line(cause)  # the outer text is the query's identity and plan
    ours = user_message(error)
    if ours is not None:
        return ours
    text = str(error).strip()
    if _NO_S3A in text:
        return _NEEDS_S3A
    if "Traceback (most recent call last)" in text:
        # A Python worker's error: its last line names the exception.
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        raised = [line for line in lines if _RAISED.match(line)]
        return _OWN_CLASS.sub("", raised[-1] if raised else lines[0])
    java = re.search(r"^: ((?:[a-z]\w*\.)+[A-Z]\w*(?:: .*)?)$", text, re.MULTILINE)
    if java and any(outer in java[1] for outer in (_READ_FAILED, _AWAITED)) and (causes := _CAUSE.findall(text)):
        return re.sub(r"\s*SQLSTATE:.*$", "", causes[-1])  # the outer exception names at most the file
    if java:
        return java[1]  # py4j's own first line names only the failed call
    line = next((part.strip() for part in text.splitlines() if part.strip()), type(error).__name__)
    line = re.sub(r"\s*SQLSTATE:.*$", "", line)
    return _SQL_PLACE.sub("", line).strip().rstrip(";")


def is_delta_conflict(error: BaseException) -> bool:
    """Whether another commit has overtaken this one, by Delta's error condition."""
    return _DELTA_CONFLICT.match(first_line(error)) is not None


def problem_at(loaded: Loaded, loc: Loc, error: BaseException, what: str) -> Problem:
    """A problem at `loc`. In a block of SQL text (`sql: |`) its line is the line of the error within the block."""
    problem = loaded.problem(loc, f"{what}: {first_line(error)}")
    place = _SQL_PLACE.search(str(error))
    block = loaded.document.mark(loc).block
    if place and block:
        return Problem(problem.file, block + int(place[1]) - 1, 0, problem.field, problem.message)
    return problem
