"""`headwater airflow`: writes the DAGs for Apache Airflow, their plugins and an example of their settings."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator

import click

import headwater
from headwater.cli.shell.errors import CliError

#: What is not for the DAGs' folder.
_PLUGINS = "plugins"
_SKIPPED = ("__pycache__", _PLUGINS)


@click.command("airflow", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="DIR", type=click.Path())
def airflow(folder: str) -> None:
    """Write the DAGs for Apache Airflow to DIR.

    DIR/dags is for Airflow's DAG folder, DIR/plugins for its plugins folder, DIR/airflow.yaml an example of their
    settings. Existing files are not overwritten.
    """
    files = dict(_files())
    existing = sorted(name for name in files if os.path.lexists(os.path.join(folder, name)))
    if existing:
        raise CliError("airflow", f"{os.path.join(folder, existing[0])} exists", "name another folder")
    for name, source in files.items():
        target = os.path.join(folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(source, target)
    sys.stdout.write(f"{len(files)} files in {folder}; docs/how-to/airflow.md explains them\n")


def _files() -> Iterator[tuple[str, str]]:
    """The path of each file below the folder, and its source: in an installed package, or in a checkout."""
    package = os.path.dirname(os.path.abspath(headwater.__file__))
    places = (package, os.path.dirname(os.path.dirname(package)))
    place = next((each for each in places if os.path.isdir(os.path.join(each, "airflow_dags"))), None)
    if place is None:
        raise CliError("airflow", "this installation of headwater lacks airflow_dags/", "install it again")
    dags = os.path.join(place, "airflow_dags")
    yield "airflow.yaml", os.path.join(place, "conf", "airflow.yaml")
    for kind, source in (("dags", dags), (_PLUGINS, os.path.join(dags, _PLUGINS))):
        for name in sorted(os.listdir(source)):
            if name not in _SKIPPED:
                yield f"{kind}/{name}", os.path.join(source, name)
