"""`headwater cluster drain`, `balance`, `replicate` and `unregister`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

import click

from headwater.cli.reassignment.balance import BalanceBand, balance_plan
from headwater.cli.reassignment.display import counted, load_rows, move_rows, plan_summary
from headwater.cli.reassignment.drain import drain_plan
from headwater.cli.reassignment.execution import RunningReassignment
from headwater.cli.reassignment.plan import ReassignmentPlan
from headwater.cli.reassignment.reading import read_cluster
from headwater.cli.reassignment.replication import replication_plan
from headwater.cli.reassignment.runner import PlanResult, PlanRunner
from headwater.cli.reassignment.snapshot import ClusterSnapshot, PartitionKey
from headwater.cli.reassignment.throttle import ReassignmentThrottle
from headwater.cli.shell.administration import cluster_client
from headwater.cli.shell.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NOT_YET, CliError
from headwater.cli.shell.options import client_options, output_option
from headwater.cli.shell.output import format_table, note, print_rows
from headwater.cli.shell.termination import EXIT_TERMINATED, Terminated, held_signals, raise_on_sigterm
from headwater.logtier.client.replicas import ReplicaAdmin

__all__ = ["balance", "drain", "replicate", "unregister"]

#: Rows of the table of moves; `-o json` has all.
ROWS_MAX: Final = 30
NAMES_MAX: Final = 5
CONCURRENT_MOVES: Final = 5
CONCURRENT_MOVES_MAX: Final = 1_000
#: Replicas of new topics on three brokers and more, and the most that a partition can usefully have.
REPLICAS: Final = 3
REPLICAS_MAX: Final = 99
#: The least throttle: a fetch of one large batch must not use up the rate of many seconds.
THROTTLE_BYTES_MIN: Final = 1_000

F = TypeVar("F", bound=Callable[..., Any])

_BROKER = click.IntRange(0)


@dataclass(frozen=True, slots=True)
class _RunOptions:
    """Options that both verbs have."""

    verb: str
    concurrent_moves: int
    throttle_bytes: int | None
    is_confirmed: bool
    is_dry_run: bool
    output: str


def _run_options(function: F) -> F:
    for option in (
        client_options,
        output_option,
        click.option("--dry-run", is_flag=True, help="Show the plan and change nothing."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option(
            "--concurrent-moves",
            type=click.IntRange(1, CONCURRENT_MOVES_MAX),
            default=CONCURRENT_MOVES,
            show_default=True,
            help="Replicas that one broker may send or receive at a time.",
        ),
        click.option(
            "--throttle",
            "throttle_bytes",
            type=click.IntRange(THROTTLE_BYTES_MIN),
            metavar="BYTES",
            help="Bytes a second that each broker may send, and receive, for these moves.  [default: no limit]",
        ),
    ):
        function = option(function)
    return function


@click.command()
@click.argument("brokers", nargs=-1, required=True, type=_BROKER, metavar="BROKER...")
@click.option("--allow-fewer-racks", is_flag=True, help="Move replicas also where fewer racks than now would have one.")
@_run_options
def drain(
    brokers: tuple[int, ...],
    allow_fewer_racks: bool,
    throttle_bytes: int | None,
    concurrent_moves: int,
    yes: bool,
    dry_run: bool,
    output: str,
    bootstrap_servers: str | None,
) -> None:
    """Move all replicas of brokers to the other brokers, so that these can be removed.

    Exit code 1 if a replica stays. A drain that was interrupted continues when the command is run again.
    """
    options = _RunOptions("cluster drain", concurrent_moves, throttle_bytes, yes, dry_run, output)
    names = ", ".join(map(str, sorted(set(brokers))))
    with cluster_client(options.verb, bootstrap_servers) as cluster:
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
        if dry_run:
            return
        stays = _left_on(admin, brokers)
    if plan.blocked or stays:
        left = len(stays) or len(plan.blocked)
        why = f"{counted(left, 'replica')} could not leave broker {names}: {_reasons(plan, result)}"
        raise CliError(options.verb, why, "mend that and run the command again", exit_code=EXIT_FAILED)
    if output == "table":
        note(
            f"Broker {names} has no replica left: stop it, then remove its registration by "
            f"`headwater cluster unregister BROKER`. New topics may be placed on it until it is stopped."
        )


@click.command()
@click.option(
    "--threshold",
    "threshold_percent",
    type=click.IntRange(1, 100),
    default=BalanceBand().threshold_percent,
    show_default=True,
    metavar="PERCENT",
    help="Difference from the mean up to which a broker is left as it is.",
)
@_run_options
def balance(
    threshold_percent: int,
    throttle_bytes: int | None,
    concurrent_moves: int,
    yes: bool,
    dry_run: bool,
    output: str,
    bootstrap_servers: str | None,
) -> None:
    """Move replicas and leaders until brokers have about the same bytes, replicas and leaders.

    Racks come first: a partition's replicas get into as many racks as there are. A balance that was interrupted
    continues when the command is run again.
    """
    options = _RunOptions("cluster balance", concurrent_moves, throttle_bytes, yes, dry_run, output)
    with cluster_client(options.verb, bootstrap_servers) as cluster:
        admin = ReplicaAdmin(cluster)
        snapshot, running = read_cluster(admin)
        plan = balance_plan(snapshot, BalanceBand(threshold_percent))
        _show_and_run(admin, options, snapshot, running, plan)


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--replicas",
    type=click.IntRange(2, REPLICAS_MAX),
    default=REPLICAS,
    show_default=True,
    metavar="N",
    help="Replicas that each partition has at least.",
)
@_run_options
def replicate(
    topics: tuple[str, ...],
    replicas: int,
    throttle_bytes: int | None,
    concurrent_moves: int,
    yes: bool,
    dry_run: bool,
    output: str,
    bootstrap_servers: str | None,
) -> None:
    """Add replicas to partitions that have fewer than N, of some topics or of all, internal ones included.

    Topics of a node that became a cluster have one replica. Present replicas and preferred leaders stay. Exit code 1 if
    a partition gets fewer. A run that was interrupted continues when the command is run again.
    """
    options = _RunOptions("cluster replicate", concurrent_moves, throttle_bytes, yes, dry_run, output)
    with cluster_client(options.verb, bootstrap_servers) as cluster:
        admin = ReplicaAdmin(cluster)
        snapshot, running = read_cluster(admin)
        known = {key.topic for key in snapshot.partitions}
        if unknown := sorted(set(topics) - known):
            raise CliError(options.verb, f"there is no topic {unknown[0]}", "see `headwater topic list --internal`")
        plan = replication_plan(snapshot, replicas, topics or None)
        result = _show_and_run(admin, options, snapshot, running, plan)
    if plan.blocked and not dry_run:
        why = f"{counted(len(plan.blocked), 'partition')} could not get {replicas} replicas: {_reasons(plan, result)}"
        raise CliError(options.verb, why, "mend that and run the command again", exit_code=EXIT_FAILED)


@click.command()
@click.argument("broker", type=_BROKER, metavar="BROKER")
@client_options
def unregister(broker: int, bootstrap_servers: str | None) -> None:
    """Remove the registration of a broker that was drained and stopped: no new topic gets replicas on it."""
    verb = "cluster unregister"
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
    options: _RunOptions,
    snapshot: ClusterSnapshot,
    running: Mapping[PartitionKey, RunningReassignment],
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


def _confirm(options: _RunOptions, plan: ReassignmentPlan, running: Mapping[PartitionKey, RunningReassignment]) -> None:
    summary = plan_summary(plan) or f"wait for {counted(len(running), 'running reassignment')}"
    if options.is_confirmed:
        return
    if not sys.stdin.isatty():
        raise CliError(options.verb, f"would {summary}", "give --yes to confirm, or --dry-run")
    click.confirm(f"{summary[0].upper()}{summary[1:]}?", abort=True, err=True)


def _run(
    admin: ReplicaAdmin,
    options: _RunOptions,
    snapshot: ClusterSnapshot,
    running: Mapping[PartitionKey, RunningReassignment],
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


def _left_on(admin: ReplicaAdmin, brokers: tuple[int, ...]) -> list[str]:
    """Return the partitions with a replica on some brokers."""
    _, assigned = admin.assignments()
    return [f"{each.topic}-{each.partition}" for each in assigned if set(each.replicas) & set(brokers)]


def _reasons(plan: ReassignmentPlan, result: PlanResult | None) -> str:
    reasons = {str(each.key): each.reason for each in plan.blocked} | (result.failures if result else {})
    if not reasons:
        return "topics were created meanwhile"
    shown = [f"{name} ({reason})" for name, reason in list(reasons.items())[:NAMES_MAX]]
    others = f" and {len(reasons) - NAMES_MAX} others" if len(reasons) > NAMES_MAX else ""
    return "; ".join(shown) + others


# -- display ---------------------------------------------------------------------------------------------------------


def _print_plan(plan: ReassignmentPlan, running: Mapping[PartitionKey, RunningReassignment]) -> None:
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
    options: _RunOptions,
    plan: ReassignmentPlan,
    running: Mapping[PartitionKey, RunningReassignment],
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
            "progress": None if result.progress is None else asdict(result.progress),
        }
    print_rows([document], {}, options.output)


def _named(names: Iterable[object]) -> str:
    listed = [str(each) for each in names]
    others = f" and {len(listed) - NAMES_MAX} others" if len(listed) > NAMES_MAX else ""
    return ", ".join(listed[:NAMES_MAX]) + others
