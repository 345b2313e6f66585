"""How many files this process may have open: a log that is written holds one, and so does every connection."""

import resource


def raise_open_file_limit() -> int:
    """Raise the soft limit to the hard one, as a JVM does at its start, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
