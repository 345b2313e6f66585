"""`headwater cluster migrate`: makes the data folder of one node that of a cluster on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from headwater.cli.shell.cluster_rights import check_rights
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import settings
from headwater.cli.shell.output import note
from headwater.cluster_folder import BROKERS_MAX

if TYPE_CHECKING:
    from headwater.migration.migrate import MigrationPlan
    from headwater.migration.one_node_folder import OneNodeFolder

OTHERS_SHOWN_MAX = 5


@click.command()
@click.option("--data", "data_dir", type=click.Path(), metavar="DIR", help="Data directory.  [default: headwater-data]")
@click.option(
    "--brokers",
    type=click.IntRange(2, BROKERS_MAX),
    metavar="N",
    help="Number of brokers of the cluster.  [default: 3]",
)
@click.option("--back", is_flag=True, help="Make it the folder of one node again, before the cluster was started.")
@click.option("--dry-run", is_flag=True, help="Show the plan without changing anything.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def migrate(data_dir: str | None, brokers: int | None, back: bool, dry_run: bool, yes: bool) -> None:
    """Make the data folder of one node that of a cluster on this machine.

    The node must be stopped. Its broker keeps its id, its port and all data; the others begin empty. A migration that
    was interrupted is continued by the same command.
    """
    from headwater.logtier.runtime.disk import RealDisk
    from headwater.migration.migrate import Migrating
    from headwater.migration.one_node_folder import MigrationError
    from headwater.migration.zookeeper_files import ServedZooKeeperFiles

    folder = data_dir if data_dir is not None else settings().data_dir
    if not back:  # the node that the folder becomes again may need them
        _check_properties(settings().broker_config, folder)
    migrating = Migrating(folder, RealDisk(), ServedZooKeeperFiles(settings().start_timeout_ms), note)
    try:
        if back:
            migrating.go_back()
            note(f"{folder} is the folder of one node again: start it with `headwater up --data {folder}`.")
            return
        plan = migrating.plan(brokers)
        if plan.folder is not None:
            check_rights("cluster migrate", settings().broker_config, plan.folder.metadata.image)
        for line in describe(folder, plan):
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if dry_run:
            note("Nothing was changed (dry run).")
            return
        _confirm(plan, folder, yes=yes)
        journal = migrating.migrate(brokers)
    except MigrationError as error:
        raise CliError("cluster migrate", str(error), exit_code=EXIT_FAILED) from None
    note(
        f"{folder} is the folder of {len(journal.brokers)} brokers. Start it with `headwater up --brokers "
        f"{len(journal.brokers)} --data {folder}`, and the same --kafka-port as before."
    )


def _confirm(plan: MigrationPlan, folder: str, *, yes: bool) -> None:
    if yes or plan.continues:
        return
    if not sys.stdin.isatty():
        raise CliError("cluster migrate", f"would migrate {folder}", "give --yes to confirm")
    click.confirm(f"Migrate {folder}?", abort=True, err=True)


def describe(folder: str, plan: MigrationPlan) -> list[str]:
    """Return the plan for the user, line by line."""
    journal = plan.journal
    brokers = ", ".join(map(str, journal.brokers))
    if plan.folder is None:
        return [f"Continues the migration of {folder} to brokers {brokers}, from the stage `{journal.stage.value}`."]
    return _describe_start(folder, plan.folder, journal.brokers)


def _describe_start(folder: str, node: OneNodeFolder, brokers: tuple[int, ...]) -> list[str]:
    copies = min(3, len(brokers))
    size = f"{node.topics} topics, {node.partitions} partitions, {node.log_bytes >> 20} MiB of logs"
    more_bytes = (copies - 1) * node.log_bytes
    lines = [
        f"{folder}: broker {node.node_id} of cluster {node.cluster_id}, {size}",
        f"1. copy {len(node.metadata.creates)} nodes of metadata into a ZooKeeper, {folder}/zookeeper",
        f"2. move {len(node.broker_files)} files and folders to {folder}/broker-{node.node_id}",
        f"3. make it the folder of brokers {', '.join(map(str, brokers))}; broker {node.node_id} keeps the first port",
        f"The old metadata is kept in {folder}/cluster-migration/one-node.",
        f"Each topic keeps one replica: {copies} replicas of each would need another {more_bytes >> 20} MiB.",
    ]
    if node.other_files:
        shown = ", ".join(node.other_files[:OTHERS_SHOWN_MAX])
        more = len(node.other_files) - OTHERS_SHOWN_MAX
        lines.append(f"Not the node's, and left where they are: {shown}{f' and {more} others' if more > 0 else ''}")
    return lines


def _check_properties(broker_config: str, folder: str) -> None:
    """Check that the cluster could be started with the user's properties."""
    if not broker_config:
        return
    from headwater.cli.shell.broker_properties import read_properties
    from headwater.cli.verbs.up import OF_ONE_BROKER

    fixed = [name for name in OF_ONE_BROKER if name in read_properties(broker_config)]
    if fixed:
        raise CliError(
            "cluster migrate",
            f"{broker_config} sets {fixed[0]}, which each broker of a cluster has for itself, so that `headwater up "
            f"--brokers` could not start {folder} with it",
            "leave it out first",
        )
