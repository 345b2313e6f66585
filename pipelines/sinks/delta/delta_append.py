"""Appends rows to a Delta table once a micro-batch, without reading the table's whole state.

Delta's own writer, with the options `txnAppId` and `txnVersion`, reads the last written batch from the table's state,
and rebuilds that state from the whole log after each commit: three Spark jobs, and most of the time of a small append.
But every commit stores the same list in its checksum file (Delta protocol, "Version Checksum File", `setTransactions`),
which is read with the snapshot. So this module reads the checksum file, and then proceeds like Delta: it writes the
files, and commits them with the batch's number. A concurrent commit for the same application is a conflict, as with the
options. Where a table's last commit lacks the list (because of another writer, or of more applications than Delta lists
there), Delta's own writer remains for `delta`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.pipelines.spark import jvm_delta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["append_once"]


def append_once(
    frame: DataFrame, path: str, app_id: str, batch_id: int, partition_by: Sequence[str], *, merge_schema: bool
) -> bool:
    """Append a micro-batch to a table unless the table already has it. Raises Spark's errors.

    Returns False, without any effect, if the table does not exist or its checksum lacks the list: the caller then
    appends with the options.

    `app_id` names the checkpoint to which `batch_id` belongs: the `appId` and `version` of Delta's `txn` action.
    """
    transaction = jvm_delta.start_delta_transaction(frame.sparkSession, path)
    last = jvm_delta.delta_last_batch(transaction, app_id)
    if last is None:
        return False
    if last < batch_id:
        jvm_delta.commit_delta_append(transaction, frame, partition_by, {app_id: batch_id}, merge_schema=merge_schema)
    return True
