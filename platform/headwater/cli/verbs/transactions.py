"""`headwater transactions`: the functions of `kafka-transactions.sh`, and one command to abort hanging ones."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from headwater.cli.shell.administration import cluster_client
from headwater.cli.shell.errors import CliError
from headwater.cli.shell.options import client_options, output_option
from headwater.cli.shell.output import format_table, note, print_rows
from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.transactions import HangingTransaction, OpenTransaction, TransactionAdmin

_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
_MINUTE_MS = 60_000


@click.group(name="transactions")
def app() -> None:
    """List and describe transactions; find and abort hanging ones."""


@app.command(name="list")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(_STATES), help="Transactions in this state; may be repeated."
)
@click.option(
    "--producer-id", "producer_ids", multiple=True, type=int, help="Transactions of this producer; may be repeated."
)
@click.option(
    "--running-longer-than-ms",
    type=click.IntRange(0),
    metavar="MS",
    help="Transactions that have been open longer than this.",
)
@click.option("--pattern", metavar="REGEX", help="Transactional ids that match this expression as a whole.")
@output_option
@client_options
def list_transactions(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    running_longer_than_ms: int | None,
    pattern: str | None,
    output: str,
    bootstrap_servers: str | None,
) -> None:
    """List transactional ids."""
    with cluster_client("transactions list", bootstrap_servers) as cluster:
        listed = TransactionAdmin(cluster).listings(
            states=states,
            producer_ids=producer_ids,
            duration_ms=-1 if running_longer_than_ms is None else running_longer_than_ms,
            pattern=pattern,
        )
    print_rows(
        [asdict(each) for each in listed],
        {"transactional_id": "TRANSACTIONAL ID", "coordinator": "COORDINATOR", "producer_id": "PRODUCER ID"}
        | {"state": "STATE"},
        output,
    )


@app.command()
@click.argument("transactional_ids", nargs=-1, required=True, metavar="ID...")
@output_option
@client_options
def describe(transactional_ids: tuple[str, ...], output: str, bootstrap_servers: str | None) -> None:
    """Show the producer, start time and partitions of transactional ids."""
    rows: list[dict[str, Any]] = []
    now_ms = _now_ms()
    with cluster_client("transactions describe", bootstrap_servers) as cluster:
        admin = TransactionAdmin(cluster)
        for name in transactional_ids:
            described = admin.describe(name)
            if described is None:
                raise CliError(
                    "transactions describe",
                    f"there is no transactional id {name[:249]!r}",
                    "`headwater transactions list` shows them",
                )
            is_open = described.start_ms is not None and described.state in ("Ongoing", "PrepareCommit", "PrepareAbort")
            rows.append(
                {
                    "transactional_id": described.transactional_id,
                    "coordinator": described.coordinator,
                    "producer_id": described.producer_id,
                    "producer_epoch": described.producer_epoch,
                    "state": described.state,
                    "timeout_ms": described.timeout_ms,
                    "started": _time(described.start_ms),
                    "open_for_ms": now_ms - described.start_ms if is_open and described.start_ms is not None else None,
                    "partitions": [f"{topic}-{partition}" for topic, partition in described.partitions],
                }
            )
    if output != "table":
        print_rows(rows, {}, output)
        return
    for position, row in enumerate(rows):
        sys.stdout.write("\n" if position else "")
        lines = [{"key": key.replace("_", " "), "value": value} for key, value in row.items()]
        sys.stdout.write(format_table(lines, {"key": "", "value": ""}).partition("\n")[2])
    sys.stdout.flush()


_TOPIC = click.option("-t", "--topic", help="Search this topic only.  [default: all topics]")
_PARTITION = click.option("-p", "--partition", type=click.IntRange(0), help="Search this partition of --topic only.")
_OLDER = click.option(
    "--max-transaction-timeout-minutes",
    "older_than_minutes",
    type=click.IntRange(0),
    default=15,
    show_default=True,
    help="Skip transactions written to within this time: they may still be in progress.",
)


@app.command(name="find-hanging")
@_TOPIC
@_PARTITION
@_OLDER
@output_option
@client_options
def find_hanging(
    topic: str | None, partition: int | None, older_than_minutes: int, output: str, bootstrap_servers: str | None
) -> None:
    """List hanging transactions: those open in a partition that no coordinator will end, with their owners."""
    with cluster_client("transactions find-hanging", bootstrap_servers) as cluster:
        hanging = _find(cluster, topic, partition, older_than_minutes)
    _print_hanging(hanging, output)


@app.command()
@_TOPIC
@_PARTITION
@click.option(
    "--start-offset", type=click.IntRange(0), help="Start offset of the transaction, in --partition of --topic."
)
@click.option(
    "--all-hanging", is_flag=True, help="Abort all transactions that `find-hanging` lists with the same options."
)
@_OLDER
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be aborted without aborting it.")
@client_options
def abort(
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    all_hanging: bool,
    older_than_minutes: int,
    yes: bool,
    dry_run: bool,
    bootstrap_servers: str | None,
) -> None:
    """Abort all hanging transactions, or the one with a given partition and start offset, after confirmation.

    Consumers with read_committed skip the records of an aborted transaction, and continue behind it.
    """
    if all_hanging == (start_offset is not None):
        raise CliError("transactions abort", "give --all-hanging, or --topic, --partition and --start-offset")
    with cluster_client("transactions abort", bootstrap_servers) as cluster:
        admin = TransactionAdmin(cluster)
        if start_offset is None:
            hanging = _find(cluster, topic, partition, older_than_minutes)
            chosen = [each.transaction for each in hanging]
            _print_hanging(hanging, "table")
        else:
            chosen = [_open_at(admin, topic, partition, start_offset)]
        if not chosen:
            note("There are no hanging transactions.")
            return
        summary = ", ".join(_summary(each) for each in chosen)
        if dry_run:
            note(f"Would abort {summary} (dry run: nothing was aborted).")
            return
        if not yes:
            if not sys.stdin.isatty():
                raise CliError("transactions abort", f"would abort {summary}", "give --yes to confirm")
            click.confirm(f"Abort {summary}? This cannot be undone.", abort=True, err=True)
        for each in chosen:
            admin.abort(each)
            note(f"Aborted {_summary(each)}.")


def _find(
    cluster: ClusterClient, topic: str | None, partition: int | None, older_than_minutes: int
) -> list[HangingTransaction]:
    if topic is None:
        if partition is not None:
            raise CliError("transactions", "--partition needs --topic")
        partitions = [(name, each) for name, parts in cluster.topics(with_internal=True).items() for each in parts]
    else:
        partitions = [(topic, each) for each in cluster.partitions(topic) if partition in (None, each)]
        if not partitions:
            raise CliError("transactions", f"topic {topic!r} has no partition {partition}")
    return TransactionAdmin(cluster).find_hanging(
        partitions, older_than_ms=older_than_minutes * _MINUTE_MS, now_ms=_now_ms()
    )


def _open_at(admin: TransactionAdmin, topic: str | None, partition: int | None, start_offset: int) -> OpenTransaction:
    if topic is None or partition is None:
        raise CliError("transactions abort", "--start-offset needs --topic and --partition")
    for each in admin.open_transactions([(topic, partition)]):
        if each.start_offset == start_offset:
            return each
    raise CliError(
        "transactions abort",
        f"no open transaction begins at offset {start_offset} of {topic}-{partition}",
        "`headwater transactions find-hanging` lists those that hang",
    )


def _print_hanging(hanging: list[HangingTransaction], output: str) -> None:
    now_ms = _now_ms()
    rows = [
        asdict(each.transaction)
        | {
            "transactional_id": each.transactional_id,
            "silent_for_minutes": (now_ms - each.transaction.last_timestamp_ms) // _MINUTE_MS,
            "why": each.why,
        }
        for each in hanging
    ]
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "start_offset": "START OFFSET",
        "producer_id": "PRODUCER ID",
        "producer_epoch": "EPOCH",
        "transactional_id": "OWNER",
        "silent_for_minutes": "SILENT (MIN)",
        "why": "WHY",
    }
    print_rows(rows, columns, output)


def _summary(transaction: OpenTransaction) -> str:
    return (
        f"the transaction of producer {transaction.producer_id} in {transaction.topic}-{transaction.partition} "
        f"(from offset {transaction.start_offset})"
    )


def _now_ms() -> int:
    return int(time.time() * 1000)


def _time(time_ms: int | None) -> str | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
