"""Access to Delta's transactions in the JVM. Delta's Python API has none.

Beside `jvm` the only module that uses PySpark's private attributes for the JVM; it has the same rules. The version of
Delta's jar is pinned with Spark's.
"""

from __future__ import annotations

import json
import time
import urllib.parse
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from headwater.pipelines.spark.jvm import activate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def start_delta_transaction(spark: SparkSession, path: str) -> Any:
    """A transaction on a table's latest snapshot: `OptimisticTransaction`, from `DeltaLog.startTransaction`."""
    jvm: Any = spark._jvm
    activate(spark)  # by whose job Delta computes a state without a checksum file
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    return log.startTransaction()


def delta_last_batch(transaction: Any, app_id: str) -> int | None:
    """An application's last batch in a table, -1 for none, None if the checksum lacks the list.

    Depends on `Snapshot.checksumOpt` (`VersionChecksum.setTransactions`), which is read with the snapshot.
    """
    checksum = transaction.snapshot().checksumOpt()
    known = checksum.get().setTransactions() if checksum.isDefined() else checksum
    if not known.isDefined():
        return None
    marks = known.get()
    for position in range(marks.size()):
        mark = marks.apply(position)
        if mark.appId() == app_id:
            return int(mark.version())
    return -1


def delta_marks(transaction: Any, prefix: str) -> dict[str, int]:
    """The versions of all applications of a table whose appId begins with `prefix`.

    They are in the last commit's checksum file, or in the snapshot: `Snapshot.setTransactions`, a Spark job.
    """
    snapshot = transaction.snapshot()
    checksum = snapshot.checksumOpt()
    known = checksum.get().setTransactions() if checksum.isDefined() else checksum
    marks = known.get() if known.isDefined() else snapshot.setTransactions()
    found = {}
    for position in range(marks.size()):
        mark = marks.apply(position)
        if mark.appId().startswith(prefix):
            found[str(mark.appId())] = int(mark.version())
    return found


def delta_version(transaction: Any) -> int:
    """The version of the table that a transaction reads; -1 without a table."""
    return int(transaction.readVersion())


def delta_committed_ms(transaction: Any) -> int:
    """When the version that a transaction reads was committed: `Snapshot.timestamp`, in milliseconds since 1970."""
    return int(transaction.snapshot().timestamp())


def delta_file_count(transaction: Any) -> int:
    """How many files a table has: `Snapshot.numOfFiles`, of the checksum file, or else by a Spark job."""
    return int(transaction.snapshot().numOfFiles())


def delta_property(transaction: Any, name: str) -> str | None:
    """A table's property; None if it is not set, or without a table. Depends on `Metadata.configuration`."""
    if transaction.readVersion() < 0:
        return None
    found = transaction.metadata().configuration().get(name)
    return str(found.get()) if found.isDefined() else None


def delta_definition(transaction: Any) -> tuple[str, str]:
    """A table's `protocol` and `metaData` actions in Delta's JSON. Depends on `Action.json`."""
    return str(transaction.protocol().json()), str(transaction.metadata().json())


def delta_schema(transaction: Any) -> str:
    """A table's columns as Spark's JSON; '' without a table. Depends on `Metadata.schemaString`."""
    return "" if transaction.readVersion() < 0 else str(transaction.metadata().schemaString())


def commit_delta_append(
    transaction: Any,
    frame: DataFrame,
    partition_by: Sequence[str],
    marks: Mapping[str, int],
    *,
    merge_schema: bool,
    replaced: str = "",
    committing: Callable[[], AbstractContextManager[str]] = lambda: nullcontext(""),
) -> None:
    """Write a frame's rows and commit them with `marks`: versions by appId, which `delta_marks` returns afterwards.

    With `replaced`, a condition, the rows take the place of those that meet it. `committing` is entered when all files
    are written, and left after the commit; what it raises ends the transaction without a commit. It gives the commit's
    userMetadata, '' for that of the session's setting.

    Depends on `WriteIntoDelta.writeAndReturnCommitData`, `DeltaOperations.Write`, the action `SetTransaction`,
    `OptimisticTransaction.readTxn` (a concurrent commit for one of these applications is then a conflict) and the
    number of their arguments.
    """
    session = frame.sparkSession
    jvm: Any = session._jvm
    modes = jvm.org.apache.spark.sql.SaveMode
    mode = modes.Overwrite if replaced else modes.Append
    _read_marks(transaction, marks)
    actions, tags = _write_rows(session, transaction, frame, mode, partition_by, merge_schema, replaced)
    with committing() as metadata:
        _commit_write(session, transaction, actions, tags, mode, partition_by, marks, metadata)


def commit_delta_files(
    session: SparkSession,
    transaction: Any,
    adds: Sequence[str],
    frame: DataFrame | None,
    marks: Mapping[str, int],
    *,
    replaced: Sequence[Any] = (),
    merge_schema: bool = False,
    committing: Callable[[Sequence[str]], AbstractContextManager[str]] = lambda _: nullcontext(""),
) -> tuple[int, int]:
    """Commit files that are there, by their `add` actions in Delta's JSON, and a frame's rows, with `marks`.

    They take the place of the files `replaced`, of `delta_files`. Returns the version, and the number of files that it
    has added. `marks` and `committing` are those of `commit_delta_append`; `committing` gets the paths in the table of
    all files that the commit adds, the frame's as well. Depends on the same classes, and on `Action.fromJson`,
    `AddFile.path` and `AddFile.remove`.
    """
    jvm: Any = session._jvm
    mode = jvm.org.apache.spark.sql.SaveMode.Append
    _read_marks(transaction, marks)
    if frame is None:
        python = jvm.org.apache.spark.api.python.PythonUtils
        actions, tags = python.toSeq([]), python.toScalaMap({})
    else:
        actions, tags = _write_rows(session, transaction, frame, mode, (), merge_schema, "")
    parse = _scala_object(jvm, "org.apache.spark.sql.delta.actions.Action").fromJson
    for add in adds:
        actions = actions.appended(parse(add))
    files = int(actions.size())
    added = [each for each in map(actions.apply, range(files)) if each.getClass().getSimpleName() == "AddFile"]
    paths = [urllib.parse.unquote(str(each.path())) for each in added]
    for each in replaced:
        actions = actions.appended(each.remove())
    with committing(paths) as metadata:
        return _commit_write(session, transaction, actions, tags, mode, (), marks, metadata), files


def commit_delta_rearranged(
    session: SparkSession,
    transaction: Any,
    frame: DataFrame,
    replaced: Sequence[Any],
    *,
    committing: Callable[[], AbstractContextManager[None]],
) -> None:
    """Let a frame's rows take the place of the files `replaced`, of `delta_files`, which have the same rows.

    As by OPTIMIZE, no data changes: commits that add rows meanwhile are no conflict, and streams of the table read
    nothing of it. `committing` is entered when all files are written; what it raises ends the transaction without a
    commit. Raises RuntimeError for another number of rows, by `delta_file_row_count`.

    Depends on the classes that `commit_delta_append` names, on `DeltaOperations.Optimize`, on the writer's option
    `dataChange` and on `AddFile.removeWithTimestamp`.
    """
    jvm: Any = session._jvm
    mode = jvm.org.apache.spark.sql.SaveMode.Append
    actions, tags = _write_rows(session, transaction, frame, mode, (), False, "", changes_data=False)
    written = [actions.apply(position) for position in range(actions.size())]
    before, after = ([delta_file_row_count(each) for each in files] for files in (replaced, written))
    if None in before or None in after or sum(filter(None, before)) != sum(filter(None, after)):
        raise RuntimeError(f"files of {before} rows would become files of {after}")
    now_ms = int(time.time() * 1000)
    for each in replaced:
        actions = actions.appended(each.removeWithTimestamp(now_ms, False))
    python = jvm.org.apache.spark.api.python.PythonUtils
    none = _scala_object(jvm, "scala.None")
    operation = _scala_object(jvm, "org.apache.spark.sql.delta.DeltaOperations$Optimize").apply(
        python.toSeq([]), python.toSeq([]), False, none, False
    )
    with committing():
        transaction.commitIfNeeded(actions, operation, tags)


def delta_file_row_count(added: Any) -> int | None:
    """The rows of an `AddFile`, without those that a deletion vector marks; None without statistics.

    Depends on `AddFile.numLogicalRecords`.
    """
    rows = added.numLogicalRecords()
    return int(rows.get()) if rows.isDefined() else None


def delta_file_bytes(added: Any) -> int:
    """The size of an `AddFile` of `delta_files`."""
    return int(added.size())


def delta_files(session: SparkSession, transaction: Any) -> dict[str, Any]:
    """A table's files as `AddFile`, by their names, as `_metadata.file_name` has them.

    The transaction has read the whole table then: a concurrent commit that removes one of them, or adds rows, is a
    conflict. Depends on `OptimisticTransaction.filterFiles` and its argument `keepNumRecords`, without which files have
    no `delta_file_row_count`.
    """
    jvm: Any = session._jvm
    everything = jvm.org.apache.spark.api.python.PythonUtils.toSeq([])
    found = transaction.filterFiles(everything, True).toIndexedSeq()
    files = (found.apply(position) for position in range(found.size()))
    return {urllib.parse.unquote(str(each.path()).rpartition("/")[2]): each for each in files}


def delta_file_rows(spark: SparkSession, transaction: Any, files: Sequence[Any]) -> DataFrame:
    """The rows of some files of a table, without those that deletion vectors mark. A file that is gone is an error.

    Depends on `DeltaLog.createDataFrame` and the number of its arguments.
    """
    from pyspark.sql import DataFrame

    jvm: Any = spark._jvm
    for setting in ("ignoreMissingFiles", "ignoreCorruptFiles"):
        # Whatever the session says: rows that are not read would be removed with their file.
        spark.conf.set(f"spark.sql.files.{setting}", "false")
    chosen = jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(files))
    none = _scala_object(jvm, "scala.None")
    made = transaction.deltaLog().createDataFrame(transaction.snapshot(), chosen, False, none)
    return DataFrame(made, spark)


def create_delta_table(session: SparkSession, transaction: Any, schema: str, properties: Mapping[str, str]) -> None:
    """Make a table without a file, also in a folder that has other files; `schema` is Spark's JSON.

    Depends on the classes that `commit_delta_append` names, `Action.fromJson`, and
    `OptimisticTransaction.updateMetadataForNewTable`. Raises Delta's conflict if another has made it meanwhile.
    """
    jvm: Any = session._jvm
    python = jvm.org.apache.spark.api.python.PythonUtils
    definition = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": dict(properties),
        "createdTime": int(time.time() * 1000),
    }
    parse = _scala_object(jvm, "org.apache.spark.sql.delta.actions.Action").fromJson
    transaction.updateMetadataForNewTable(parse(json.dumps({"metaData": definition})))
    mode = jvm.org.apache.spark.sql.SaveMode.Append
    _commit_write(session, transaction, python.toSeq([]), python.toScalaMap({}), mode, (), {}, "")


def _read_marks(transaction: Any, marks: Mapping[str, int]) -> None:
    """Let a concurrent commit for one of these applications be a conflict."""
    for app_id in marks:
        transaction.readTxn().addOne(app_id)


def _write_rows(
    session: SparkSession,
    transaction: Any,
    frame: DataFrame,
    mode: Any,
    partition_by: Sequence[str],
    merge_schema: bool,
    replaced: str,
    *,
    changes_data: bool = True,
) -> tuple[Any, Any]:
    """Write a frame's rows as files; the actions of their commit, and its tags."""
    jvm: Any = session._jvm
    java_session = session._jsparkSession
    delta = jvm.org.apache.spark.sql.delta
    none = _scala_object(jvm, "scala.None")
    python = jvm.org.apache.spark.api.python.PythonUtils
    given = {"mergeSchema": str(merge_schema).lower(), **({"replaceWhere": replaced} if replaced else {})}
    if not changes_data:
        given["dataChange"] = "false"
    options = delta.DeltaOptions(python.toScalaMap(given), java_session.sessionState().conf())
    command = _scala_object(jvm, "org.apache.spark.sql.delta.commands.WriteIntoDelta").apply(
        transaction.deltaLog(),
        mode,
        options,
        python.toSeq(list(partition_by)),
        python.toScalaMap({}),
        frame._jdf,
        none,
        none,
        False,
    )
    written = command.writeAndReturnCommitData(transaction, java_session, none, False)
    return written.actions(), written.stringTags()


def _commit_write(
    session: SparkSession,
    transaction: Any,
    actions: Any,
    tags: Any,
    mode: Any,
    partition_by: Sequence[str],
    marks: Mapping[str, int],
    metadata: str,
) -> int:
    """Commit the actions of a write with `marks`; the version."""
    jvm: Any = session._jvm
    none = _scala_object(jvm, "scala.None")
    option = jvm.scala.Option
    now_ms = option.apply(int(time.time() * 1000))
    mark = jvm.org.apache.spark.sql.delta.actions.SetTransaction
    for app_id, version in marks.items():
        actions = actions.appended(mark(app_id, version, now_ms))
    columns = jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(partition_by))
    operation = _scala_object(jvm, "org.apache.spark.sql.delta.DeltaOperations$Write").apply(
        mode, option.apply(columns), none, option.apply(metadata or None), none, none, none, none, none
    )
    version = transaction.commitIfNeeded(actions, operation, tags)
    return int(version.get()) if version.isDefined() else -1


def _scala_object(jvm: Any, name: str) -> Any:
    """A Scala object: in Java, the static field MODULE$ of the class with its name and a `$`."""
    return getattr(getattr(jvm, f"{name}$"), "MODULE$")
