"""What `headwater cluster drain`, `balance`, `replicate` and `unregister` do: read, plan, show, ask, run.

`commands` imports this module when one of them runs: with the client it takes as long to import as the rest of
`headwater cluster status`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import click

from headwater.cli.reassignment.balance import balance_plan
from headwater.cli.reassignment.band import BalanceBand
from headwater.cli.reassignment.display import counted, load_rows, move_rows, plan_summary
from headwater.cli.reassignment.drain import drain_plan
from headwater.cli.reassignment.plan import ReassignmentPlan
from headwater.cli.reassignment.reading import read_cluster
from headwater.cli.reassignment.replication import replication_plan
from headwater.cli.reassignment.runner import PlanResult, PlanRunner
from headwater.cli.reassignment.snapshot import ClusterSnapshot
from headwater.cli.reassignment.throttle import ReassignmentThrottle
from headwater.cli.shell.administration import cluster_client
from headwater.cli.shell.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NOT_YET, CliError
from headwater.cli.shell.output import format_table, note, print_rows
from headwater.cli.shell.termination import EXIT_TERMINATED, Terminated, held_signals, raise_on_sigterm
from headwater.logtier.client.ongoing_reassignment import OngoingReassignment
from headwater.logtier.client.replicas import ReplicaAdmin
from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = ["PlanRunOptions", "balance", "drain", "replicate", "unregister"]

#: Rows of the table of moves; `-o json` has all.
ROWS_MAX: Final = 30
NAMES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class PlanRunOptions:
    """Options of every command that runs a plan; `verb` names it in errors."""

    verb: str
    bootstrap_servers: str | None
    concurrent_moves: int
    throttle_bytes: int | None
    is_confirmed: bool
    is_dry_run: bool
    output: str


def drain(options: PlanRunOptions, brokers: Sequence[int], *, allow_fewer_racks: bool) -> None:
    """Move all replicas of brokers to the other brokers; CliError if one stays."""
    names = ", ".join(map(str, sorted(set(brokers))))
    with cluster_client(options.verb, options.bootstrap_servers) as cluster:
        admin = ReplicaAdmin(cluster)
        snapshot, running = read_cluster(admin)
        known = {*snapshot.brokers, *snapshot.absent}
        unknown = sorted(set(brokers) - known)
        if unknown:
            raise CliError(
                options.verb,
                f"there is no broker {unknown[0]}, nor a replica on it",
                f"the brokers are {', '.join(map(str, sorted(known)))}",
            )
        plan = drain_plan(snapshot, brokers, allow_fewer_racks=allow_fewer_racks)
        result = _show_and_run(admin, options, snapshot, running, plan)
        if options.is_dry_run:
            return
        stays = _left_on(admin, brokers)
    if plan.blocked or stays:
        left = len(stays) or len(plan.blocked)
        why = f"{counted(left, 'replica')} could not leave broker {names}: {_reasons(plan, result)}"
        raise CliError(options.verb, why, "mend that and run the command again", exit_code=EXIT_FAILED)
    if options.output == "table":
        note(
            f"Broker {names} has no replica left: stop it, then remove its registration by "
            f"`headwater cluster unregister BROKER`. New topics may be placed on it until it is stopped."
        )


def balance(options: PlanRunOptions, threshold_percent: int) -> None:
    """Even out bytes, replicas and leaders of brokers; CliError if a move failed."""
    with cluster_client(options.verb, options.bootstrap_servers) as cluster:
        admin = ReplicaAdmin(cluster)
        snapshot, running = read_cluster(admin)
        plan = balance_plan(snapshot, BalanceBand(threshold_percent))
        _show_and_run(admin, options, snapshot, running, plan)


def replicate(options: PlanRunOptions, topics: Sequence[str], replicas: int) -> None:
    """Add replicas to partitions of topics, of all if none is named; CliError if one gets fewer than `replicas`."""
    with cluster_client(options.verb, options.bootstrap_servers) as cluster:
        admin = ReplicaAdmin(cluster)
        snapshot, running = read_cluster(admin)
        known = {key.topic for key in snapshot.partitions}
        if unknown := sorted(set(topics) - known):
            raise CliError(options.verb, f"there is no topic {unknown[0]}", "see `headwater topic list --internal`")
        plan = replication_plan(snapshot, replicas, topics or None)
        result = _show_and_run(admin, options, snapshot, running, plan)
    if plan.blocked and not options.is_dry_run:
        why = f"{counted(len(plan.blocked), 'partition')} could not get {replicas} replicas: {_reasons(plan, result)}"
        raise CliError(options.verb, why, "mend that and run the command again", exit_code=EXIT_FAILED)


def unregister(verb: str, bootstrap_servers: str | None, broker: int) -> None:
    """Remove the registration of a broker; CliError if it has replicas."""
    with cluster_client(verb, bootstrap_servers) as cluster:
        admin = ReplicaAdmin(cluster)
        stays = _left_on(admin, (broker,))
        if stays:
            raise CliError(
                verb,
                f"broker {broker} has {counted(len(stays), 'replica')}: {_named(stays)}",
                f"run `headwater cluster drain {broker}` first",
            )
        admin.unregister(broker)
    note(f"Unregistered broker {broker}.")


def _show_and_run(
    admin: ReplicaAdmin,
    options: PlanRunOptions,
    snapshot: ClusterSnapshot,
    running: Mapping[TopicPartition, OngoingReassignment],
    plan: ReassignmentPlan,
) -> PlanResult | None:
    """Show a plan, have it confirmed, and run it. Raises CliError unless all of it was done."""
    throttle = ReassignmentThrottle(admin, snapshot.brokers, (key.topic for key in snapshot.partitions))
    leftover = throttle.throttled_topics()
    if options.output == "table":
        _print_plan(plan, running)
    if options.is_dry_run or (plan.is_empty and not running and not leftover):
        _print_document(options, plan, running, None)
        if options.is_dry_run and not plan.is_empty:
            note("Dry run: nothing was changed.")
        return None
    _confirm(options, plan, running)
    if leftover:
        note(f"Removing the throttle that an earlier run has left on {_named(leftover)}.")
        throttle.remove()
    result = _run(admin, options, snapshot, running, plan)
    _print_document(options, plan, running, result)
    if result.foreign:
        raise CliError(
            options.verb,
            f"another client reassigns partitions meanwhile: {_named(result.foreign)}",
            "nothing further was started, and what runs goes on; wait for the other client, then run this again",
            exit_code=EXIT_NOT_YET,
        )
    if result.failures:
        name, reason = next(iter(sorted(result.failures.items())))
        others = f" (and {len(result.failures) - 1} others)" if len(result.failures) > 1 else ""
        raise CliError(
            options.verb, f"{name} was not moved: {reason}{others}", "run the command again", exit_code=EXIT_FAILED
        )
    return result


def _confirm(
    options: PlanRunOptions, plan: ReassignmentPlan, running: Mapping[TopicPartition, OngoingReassignment]
) -> None:
    summary = plan_summary(plan) or f"wait for {counted(len(running), 'running reassignment')}"
    if options.is_confirmed:
        return
    if not sys.stdin.isatty():
        raise CliError(options.verb, f"would {summary}", "give --yes to confirm, or --dry-run")
    click.confirm(f"{summary[0].upper()}{summary[1:]}?", abort=True, err=True)


def _run(
    admin: ReplicaAdmin,
    options: PlanRunOptions,
    snapshot: ClusterSnapshot,
    running: Mapping[TopicPartition, OngoingReassignment],
    plan: ReassignmentPlan,
) -> PlanResult:
    runner = PlanRunner(admin, time, note, held_signals)
    raise_on_sigterm()
    try:
        return runner.run(
            plan,
            snapshot,
            running,
            concurrent_moves=options.concurrent_moves,
            throttle_bytes=options.throttle_bytes,
        )
    except KeyboardInterrupt as interrupt:
        is_terminated = isinstance(interrupt, Terminated)
        raise CliError(
            options.verb,
            "interrupted: reassignments that run go on in the brokers, without a throttle",
            "the same command continues from there",
            exit_code=EXIT_TERMINATED if is_terminated else EXIT_INTERRUPTED,
        ) from None


def _left_on(admin: ReplicaAdmin, brokers: Sequence[int]) -> list[str]:
    """Return the partitions with a replica on some brokers, also one that a running reassignment removes."""
    snapshot, running = read_cluster(admin)
    replicas = {key: part.replicas for key, part in snapshot.partitions.items()}
    replicas |= {key: each.replicas for key, each in running.items()}
    return [str(key) for key, found in replicas.items() if set(found) & set(brokers)]


def _reasons(plan: ReassignmentPlan, result: PlanResult | None) -> str:
    reasons = {str(each.key): each.reason for each in plan.blocked} | (result.failures if result else {})
    if not reasons:
        return "topics were created meanwhile"
    shown = [f"{name} ({reason})" for name, reason in list(reasons.items())[:NAMES_MAX]]
    others = f" and {len(reasons) - NAMES_MAX} others" if len(reasons) > NAMES_MAX else ""
    return "; ".join(shown) + others


# -- display ---------------------------------------------------------------------------------------------------------


def _print_plan(plan: ReassignmentPlan, running: Mapping[TopicPartition, OngoingReassignment]) -> None:
    if running:
        note(
            f"{counted(len(running), 'reassignment')} running already, of an earlier run or another client: "
            f"{_named(sorted(running))}. The plan begins at their ends, and waits for them."
        )
    parts = []
    if plan.moves:
        columns = {"partition": "PARTITION", "before": "BEFORE", "after": "AFTER", "size": "SIZE", "copied": "COPIED"}
        parts.append(format_table(move_rows(plan, ROWS_MAX), columns))
        if len(plan.moves) > ROWS_MAX:
            parts.append(f"... and {len(plan.moves) - ROWS_MAX} others; `-o json --dry-run` lists all\n")
    if not plan.is_empty:
        columns = {"broker": "BROKER", "rack": "RACK", "replicas": "REPLICAS", "size": "SIZE", "leaders": "LEADERS"}
        parts.append(format_table(load_rows(plan.before, plan.after), columns))
    if plan.blocked:
        rows = [{"partition": str(each.key), "reason": each.reason} for each in plan.blocked[:ROWS_MAX]]
        parts.append(format_table(rows, {"partition": "CANNOT MOVE", "reason": "WHY"}))
        if len(plan.blocked) > ROWS_MAX:
            parts.append(f"... and {len(plan.blocked) - ROWS_MAX} others\n")
    parts.append(f"Plan: {plan_summary(plan)}.\n" if not plan.is_empty else "Nothing is to be moved.\n")
    sys.stdout.write("\n".join(parts))
    sys.stdout.flush()


def _print_document(
    options: PlanRunOptions,
    plan: ReassignmentPlan,
    running: Mapping[TopicPartition, OngoingReassignment],
    result: PlanResult | None,
) -> None:
    if options.output == "table":
        if result is not None and not result.failures and not result.foreign:
            sys.stdout.write("Done.\n")
            sys.stdout.flush()
        return
    document = plan.as_json() | {
        "already_running": [str(each) for each in sorted(running)],
        "is_dry_run": result is None,
    }
    if result is not None:
        document |= {
            "failures": result.failures,
            "foreign_reassignments": [str(each) for each in result.foreign],
            "progress": asdict(result.progress),
        }
    print_rows([document], {}, options.output)


def _named(names: Iterable[object]) -> str:
    listed = [str(each) for each in names]
    others = f" and {len(listed) - NAMES_MAX} others" if len(listed) > NAMES_MAX else ""
    return ", ".join(listed[:NAMES_MAX]) + others
