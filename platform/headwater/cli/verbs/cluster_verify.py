"""`headwater cluster verify`: compares the replicas of partitions byte by byte."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from headwater.cli.shell.administration import cluster_client
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_options, output_option
from headwater.cli.shell.output import note, print_rows

if TYPE_CHECKING:
    from headwater.logtier.client.cluster import ClusterClient
    from headwater.verification.outcomes import PartitionOutcome

VERB: Final = "cluster verify"
CLEANUP_POLICY: Final = "cleanup.policy"
COMPACT: Final = "compact"
API_TIMEOUT_MS: Final = 60_000
"""The limit of repeated requests: longer than a session, after which another leader is elected."""

PROGRESS_S: Final = 5.0
"""Interval between lines about the progress."""


@click.command()
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Topic to compare; repeatable.  [default: all]")
@click.option(
    "--cleaned",
    is_flag=True,
    help="Compare every topic as compacted ones are: some were compacted before and no longer are.",
)
@output_option
@client_options
def verify(topics: tuple[str, ...], cleaned: bool, output: str, bootstrap_servers: str | None) -> None:
    """Compare the replicas of partitions byte by byte; exit code 1 if they differ, or seem to.

    The in-sync replicas of each partition are read from their own brokers, from the log start to the high watermark,
    while producers, cleaners and retention continue. Replicas that are not in the ISR are listed and not compared.
    """
    outcomes: list[PartitionOutcome] = []
    try:
        with cluster_client(VERB, bootstrap_servers, api_timeout_ms=API_TIMEOUT_MS) as cluster:
            _compare(cluster, topics, outcomes, cleaned=cleaned)
    except BaseException:
        if outcomes:  # what was found before the run failed or was interrupted
            _show(outcomes, output)
        raise
    _show(outcomes, output)
    different = sum(len(outcome.differences) for outcome in outcomes)
    if different:
        counted = "1 replica differs" if different == 1 else f"{different} replicas differ"
        fix = "compare the files of the named brokers; a replica is rebuilt when its broker starts without its folder"
        raise CliError(VERB, counted, fix, exit_code=EXIT_FAILED)
    unconfirmed = sum(outcome.unconfirmed for outcome in outcomes)
    if unconfirmed:
        counted = f"{unconfirmed} {'difference' if unconfirmed == 1 else 'differences'} could not be read a second time"
        raise CliError(VERB, counted, "compare again when all replicas are in the ISR", exit_code=EXIT_FAILED)


def _compare(
    cluster: ClusterClient, names: tuple[str, ...], outcomes: list[PartitionOutcome], *, cleaned: bool
) -> None:
    """Compare the partitions of topics, and add what is found of each."""
    from headwater.logtier.client.configs import topic_configs
    from headwater.logtier.client.errors import UnknownTopicError
    from headwater.verification.partition_verifier import PartitionVerifier
    from headwater.verification.replica_source import ClusterReplicas

    replicas = ClusterReplicas(cluster)
    try:
        partitions = [(topic, each) for topic in replicas.topics(names) for each in replicas.partitions(topic)]
    except UnknownTopicError as error:
        raise CliError(VERB, str(error)) from None
    progress = _Progress(len(partitions))
    policies: dict[str, str] = {}
    for topic, partition in partitions:
        if topic not in policies:
            policies = topic_configs(cluster, (topic,), CLEANUP_POLICY)
        is_compacted = cleaned or COMPACT in policies.get(topic, COMPACT)
        progress.begin(f"{topic}-{partition}", len(outcomes))
        verifier = PartitionVerifier(replicas, topic, partition, is_compacted=is_compacted, progress=progress.read)
        outcomes.append(verifier.run())


def _show(outcomes: list[PartitionOutcome], output: str) -> None:
    from headwater.verification.outcomes import summary

    if output != "table":
        print_rows([outcome.value() for outcome in outcomes], {}, output)
        return
    for outcome in outcomes:
        for line in outcome.lines():
            sys.stdout.write(line + "\n")
    sys.stdout.write(summary(outcomes) + "\n")
    sys.stdout.flush()


class _Progress:
    """Lines on stderr, if that is a terminal, at most one every few seconds."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._done = 0
        self._partition = ""
        self._bytes = 0
        self._is_shown = sys.stderr.isatty()
        self._shown_s = time.monotonic()

    def begin(self, partition: str, done: int) -> None:
        self._partition, self._done = partition, done
        self.read(0, 0)

    def read(self, offset: int, size: int) -> None:
        self._bytes += size
        now_s = time.monotonic()
        if self._is_shown and now_s - self._shown_s >= PROGRESS_S:
            self._shown_s = now_s
            size_mb = self._bytes / 1e6
            note(
                f"{VERB}: {self._done} of {self._partitions} partitions, {size_mb:,.0f} MB; "
                f"{self._partition} at offset {offset:,}"
            )
