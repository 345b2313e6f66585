"""Rows added to a Delta table once a micro-batch, without a look at the table's whole state.

Delta's own way, the write options `txnAppId` and `txnVersion`, asks the table's state for the last batch that was
written, and puts that state together anew after each commit, out of the whole log: three Spark jobs, and most of the
time of a small append. But every commit leaves the same list in its checksum file (Delta protocol, "Version Checksum
File", `setTransactions`), which is read with the snapshot. So this module asks there, and then does what Delta does:
write the files, and commit them with the batch's number. Another commit for the same application in the meantime is a
conflict, as with the options. Where a table's last commit has no such list (another writer's, or of more applications
than Delta notes there), Delta's own way is left, which `delta` takes.

Delta's Scala classes are called through Spark's gateway, since its Python API has no such call; the version of the jar
is pinned with Spark's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["append_once"]

_DELTA = "org.apache.spark.sql.delta"


def append_once(
    frame: DataFrame, path: str, app_id: str, batch_id: int, partition_by: Sequence[str], *, merge_schema: bool
) -> bool:
    """Add a micro-batch to a table, unless it has it already. Raises what Spark says.

    False, with nothing done, if there is no table or its checksum does not tell: then it is to be added by the options.

    `app_id` names the checkpoint that `batch_id` counts in: the `appId` and `version` of Delta's `txn` action.
    """
    session = frame.sparkSession
    jvm: Any = session._jvm
    java_session = session._jsparkSession
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(java_session, path)
    transaction = log.startTransaction()
    last = _last_batch(transaction.snapshot(), app_id)
    if last is None:
        return False
    if last >= batch_id:
        return True
    transaction.readTxn().addOne(app_id)  # what makes another's commit for this application a conflict
    none = _scala(jvm, "scala.None")
    python = jvm.org.apache.spark.api.python.PythonUtils
    columns, nothing = python.toSeq(list(partition_by)), python.toScalaMap({})
    mode = jvm.org.apache.spark.sql.SaveMode.Append
    options = jvm.org.apache.spark.sql.delta.DeltaOptions(
        python.toScalaMap({"mergeSchema": str(merge_schema).lower()}), java_session.sessionState().conf()
    )
    command = _scala(jvm, f"{_DELTA}.commands.WriteIntoDelta").apply(
        log, mode, options, columns, nothing, frame._jdf, none, none, False
    )
    written = command.writeAndReturnCommitData(transaction, java_session, none, False)
    operation = _scala(jvm, f"{_DELTA}.DeltaOperations$Write").apply(
        mode, jvm.scala.Option.apply(columns), none, none, none, none, none, none, none
    )
    now_ms = jvm.scala.Option.apply(int(time.time() * 1000))
    mark = jvm.org.apache.spark.sql.delta.actions.SetTransaction(app_id, batch_id, now_ms)
    transaction.commitIfNeeded(written.actions().appended(mark), operation, written.stringTags())
    return True


def _last_batch(snapshot: Any, app_id: str) -> int | None:
    """The last batch that a table has of an application, -1 for none, None where its checksum does not tell."""
    checksum = snapshot.checksumOpt()
    known = checksum.get().setTransactions() if checksum.isDefined() else checksum
    if not known.isDefined():
        return None
    marks = known.get()
    for position in range(marks.size()):
        mark = marks.apply(position)
        if mark.appId() == app_id:
            return int(mark.version())
    return -1


def _scala(jvm: Any, name: str) -> Any:
    """A Scala object."""
    return getattr(getattr(jvm, f"{name}$"), "MODULE$")
