"""`headwater cluster`: the brokers of a cluster, and the state of its replicas."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from headwater.api.cluster_health import ClusterHealth, PartitionHealth, cluster_health
from headwater.api.topic_admin import (
    TOPICS_PER_REQUEST_MAX,
    BrokerInfo,
    ClusterInfo,
    ErrorCode,
    TopicAdmin,
    TopicAdminError,
)
from headwater.cli.reassignment.commands import balance, drain, replicate, unregister
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.local_address import is_this_machine
from headwater.cli.shell.options import client_options, client_security, output_option, servers, settings
from headwater.cli.shell.output import print_rows
from headwater.cli.verbs.cluster_features import features
from headwater.cli.verbs.cluster_migrate import migrate
from headwater.cli.verbs.cluster_verify import verify
from headwater.logtier.metadata.product_topics import is_product_topic
from headwater.process_list import read_process_list

MIN_ISR: Final = "min.insync.replicas"


@click.group(name="cluster")
def app() -> None:
    """Show the brokers of a cluster and the state of its replicas; move replicas between brokers, and add some."""


app.add_command(drain)
app.add_command(balance)
app.add_command(replicate)
app.add_command(unregister)
app.add_command(features)
app.add_command(verify)
app.add_command(migrate)


@app.command()
@click.option(
    "--data",
    "data_dir",
    type=click.Path(),
    metavar="DIR",
    help="Data directory of `headwater up` on this machine, for process ids.  [default: headwater-data]",
)
@output_option
@client_options
def status(data_dir: str | None, output: str, bootstrap_servers: str | None) -> None:
    """Show the brokers, the controller, and how many partitions lack something."""
    cluster, health = _read(bootstrap_servers)
    pids = _pids(data_dir if data_dir is not None else settings().data_dir)
    addresses = {broker.broker_id: broker for broker in cluster.brokers}
    rows = []
    for each in health.brokers:
        broker = addresses.get(each.broker_id)
        rows.append(
            {
                "broker": each.broker_id,
                "host": broker.host if broker else None,
                "port": broker.port if broker else None,
                "rack": broker.rack if broker else None,
                "pid": _pid(broker, pids) if broker else None,
                "controller": each.broker_id == cluster.controller_id,
                "leaders": each.leaders,
                "replicas": each.replicas,
                "in_sync": each.in_sync,
            }
        )
    if output == "table":
        print_rows(
            rows,
            {
                "broker": "BROKER",
                "host": "HOST",
                "port": "PORT",
                "pid": "PID",
                "controller": "CONTROLLER",
                "leaders": "LEADERS",
                "replicas": "REPLICAS",
                "in_sync": "IN-SYNC",
            },
            output,
        )
        sys.stdout.write(
            f"\ncluster {cluster.cluster_id}: {health.topics} topics, {health.partitions} partitions, "
            f"{len(health.under_replicated)} under-replicated, {len(health.at_min_isr)} at min ISR, "
            f"{len(health.under_min_isr)} under min ISR, {len(health.offline)} offline\n"
        )
        sys.stdout.flush()
    else:
        print_rows([{"cluster_id": cluster.cluster_id, "brokers": rows, **_summary(cluster, health)}], {}, output)


@app.command()
@output_option
@client_options
def health(output: str, bootstrap_servers: str | None) -> None:
    """Check that every partition has its leader and all replicas in the ISR; exit code 1 if not."""
    cluster, found = _read(bootstrap_servers)
    problems = found.problems
    if output != "table":
        summary = {"healthy": not problems, "problems": problems, **_summary(cluster, found)}
        print_rows([{"cluster_id": cluster.cluster_id, **summary}], {}, output)
    else:
        for line in problems or ["healthy: every partition has a leader and all its replicas in the ISR"]:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
    if problems:
        counted = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise CliError("cluster health", counted, "see `headwater cluster status`", exit_code=EXIT_FAILED)


def _read(bootstrap_servers: str | None) -> tuple[ClusterInfo, ClusterHealth]:
    admin = TopicAdmin(servers(bootstrap_servers), settings().request_timeout_ms, client_security())
    try:
        return _read_with(admin)
    except TopicAdminError as error:
        if error.code is not ErrorCode.TIMED_OUT:
            raise
        # A broker answers, or the error would be another one; the client asks the controller.
        raise CliError(
            "cluster",
            f"a broker answers at {admin.bootstrap_servers}, and the controller does not in time",
            "it may be away without another one elected: look for `controller` in the brokers' logs, and whether "
            "ZooKeeper runs; or raise HEADWATER_REQUEST_TIMEOUT_MS",
            exit_code=EXIT_FAILED,
        ) from error


def _read_with(admin: TopicAdmin) -> tuple[ClusterInfo, ClusterHealth]:
    cluster = admin.cluster()
    topics = admin.list_topics()
    registry = settings().registry_topic
    own = {topic.name for topic in topics if is_product_topic(topic.name) or topic.name == registry}
    return cluster, cluster_health(cluster, topics, _min_isrs(admin, [topic.name for topic in topics]), own)


def _min_isrs(admin: TopicAdmin, names: Sequence[str]) -> dict[str, int]:
    """Return `min.insync.replicas` by topic, without topics that were deleted meanwhile."""
    found: dict[str, int] = {}
    for start in range(0, len(names), TOPICS_PER_REQUEST_MAX):
        some = names[start : start + TOPICS_PER_REQUEST_MAX]
        try:
            configs = admin.configs_of(some)
        except TopicAdminError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC:
                raise
            present = set(admin.topic_names())
            configs = admin.configs_of([name for name in some if name in present])
        for name, values in configs.items():
            [value] = [each.value for each in values if each.name == MIN_ISR]
            found[name] = int(value or 1)
    return found


def _summary(cluster: ClusterInfo, health: ClusterHealth) -> dict[str, Any]:
    def listed(partitions: tuple[PartitionHealth, ...]) -> list[dict[str, Any]]:
        return [{**asdict(each), "replicas": list(each.replicas), "isr": list(each.isr)} for each in partitions]

    return {
        "controller": cluster.controller_id if health.has_controller else None,
        "absent_brokers": list(health.absent),
        "topics": health.topics,
        "partitions": health.partitions,
        "under_replicated": listed(health.under_replicated),
        "offline": listed(health.offline),
        "under_min_isr": listed(health.under_min_isr),
        "at_min_isr": listed(health.at_min_isr),
        "product_topics_with_few_replicas": list(health.few_copies),
    }


def _pid(broker: BrokerInfo, pids: Mapping[int, int]) -> int | None:
    """Return a broker's process id: it is this machine's broker at that port if its host is this machine."""
    pid = pids.get(broker.port)
    return pid if pid is not None and is_this_machine(broker.host) else None


def _pids(data_dir: str) -> dict[int, int]:
    """Return the process ids of this machine's brokers by port."""
    return {int(each["port"]): int(each["pid"]) for each in read_process_list(data_dir).values() if each.get("pid")}
