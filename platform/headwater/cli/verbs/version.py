"""`headwater version`."""

from __future__ import annotations

import platform

import click

from headwater import __version__


@click.command()
def version() -> None:
    """Print the versions of Headwater and of Python."""
    click.echo(f"headwater {__version__} (Python {platform.python_version()})")
