"""Limit of open files of this process; each active segment and each connection needs a descriptor."""

import resource


def raise_open_file_limit() -> int:
    """Raise the soft limit to the hard limit, as a JVM does at its start; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
