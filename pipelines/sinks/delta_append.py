"""Rows added to a Delta table once a micro-batch, without a look at the table's whole state.

Delta's own way, the write options `txnAppId` and `txnVersion`, asks the table's state for the last batch that was
written, and puts that state together anew after each commit, out of the whole log: three Spark jobs, and most of the
time of a small append. But every commit leaves the same list in its checksum file (Delta protocol, "Version Checksum
File", `setTransactions`), which is read with the snapshot. So this module asks there, and then does what Delta does:
write the files, and commit them with the batch's number. Another commit for the same application in the meantime is a
conflict, as with the options. Where a table's last commit has no such list (another writer's, or of more applications
than Delta notes there), Delta's own way is left, which `delta` takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["append_once"]


def append_once(
    frame: DataFrame, path: str, app_id: str, batch_id: int, partition_by: Sequence[str], *, merge_schema: bool
) -> bool:
    """Add a micro-batch to a table, unless it has it already. Raises what Spark says.

    False, with nothing done, if there is no table or its checksum does not tell: then it is to be added by the options.

    `app_id` names the checkpoint that `batch_id` counts in: the `appId` and `version` of Delta's `txn` action.
    """
    transaction = jvm.start_delta_transaction(frame.sparkSession, path)
    last = jvm.delta_last_batch(transaction, app_id)
    if last is None:
        return False
    if last < batch_id:
        jvm.commit_delta_append(transaction, frame, partition_by, app_id, batch_id, merge_schema=merge_schema)
    return True
