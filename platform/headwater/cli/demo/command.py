"""`headwater demo`: real records from a topic to SQL, with one command."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import bootstrap_servers_option, client_security, command_config, command_config_option
from headwater.cli.shell.output import note


@click.command("demo", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--keep", is_flag=True, help="Keep the node running until Ctrl-C, and keep its data.")
@click.option(
    "--data",
    "data_dir",
    type=click.Path(),
    metavar="DIR",
    help="Directory of all files of the demo; not deleted.  [default: a temporary directory]",
)
@bootstrap_servers_option("Use these brokers instead of starting a node.")
@command_config_option
def demo(keep: bool, data_dir: str | None, bootstrap_servers: str | None) -> None:
    """Run 336,776 real flights through a pipeline, from a topic to Delta and SQL, and prove that none is lost.

    Starts a node, produces the flights that left New York in 2013, runs conf/pipelines/flights.yaml over them, queries
    the topics and the table, and checks that every record is exactly once in the table or among the dead letters.
    """
    from headwater.cli.demo import flights
    from headwater.cli.demo.run import Folders, run
    from headwater.cli.demo.show import Show
    from headwater.cli.pipeline.reported_errors import reported_errors
    from headwater.cli.shell.checks import require_java

    try:
        data = flights.data_folder()
    except flights.DataMissing as error:
        raise CliError("demo", str(error)) from None
    require_java()
    show = Show()
    with _folder(data_dir, keep) as root, _node(root, bootstrap_servers, show) as (address, http_url, node):
        folders = Folders(root)
        with reported_errors():
            own = node is not None  # and is reached in plain text
            stands = run(address, folders, data, show, *(() if own else (command_config(), client_security())))
        show.line("the proof holds" if stands else "the proof FAILS")
        if keep and node is not None:
            _until_stopped(node, address, http_url, folders.lake)
        if not stands:
            raise CliError("demo", "the proof fails: records are lost or duplicated", exit_code=EXIT_FAILED)


@contextmanager
def _folder(data_dir: str | None, keep: bool) -> Iterator[str]:
    """Provide the demo's folder. A temporary folder is removed at the end unless `keep` is set."""
    if data_dir is not None:
        os.makedirs(data_dir, exist_ok=True)
        yield os.path.abspath(data_dir)
        return
    folder = tempfile.mkdtemp(prefix="headwater-demo-")
    try:
        yield folder
    finally:
        if keep:
            note(f"the data is kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _node(root: str, bootstrap_servers: str | None, show: Any) -> Iterator[tuple[str, str, Any]]:
    """Start a node, or connect to the given brokers. SIGTERM ends the demo like Ctrl-C and stops the node."""
    if bootstrap_servers is not None:
        yield bootstrap_servers, "", None
        return
    from headwater.cli.demo.run import Folders
    from headwater.services import LocalNode, NodeStartError

    def on_terminate(number: int, frame: Any) -> None:  # noqa: ARG001 - the signature of a handler
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, on_terminate)
    node = LocalNode(Folders(root).node)
    try:
        try:
            node.start()
        except NodeStartError as error:
            raise CliError("demo", str(error), exit_code=EXIT_FAILED) from None
        show.line(f"a node is up: Kafka at {node.bootstrap_servers}, REST at {node.http_url}")
        yield node.bootstrap_servers, node.http_url, node
    finally:
        node.stop()
        signal.signal(signal.SIGTERM, before)


def _until_stopped(node: Any, address: str, http_url: str, lake: str) -> None:
    """Print how to explore the results, and wait for Ctrl-C or SIGTERM."""
    note(f"the node stays up until Ctrl-C: Kafka at {address}, REST at {http_url}; try, in another terminal:")
    note(f"  headwater topic list -b {address}")
    note(f"  headwater consume delays -b {address} --from-beginning")
    note(f"  headwater sql -b {address} --delta archive={lake}/flights -e 'DESCRIBE archive'")
    try:
        node.wait()
    except KeyboardInterrupt:
        note("stopping")
