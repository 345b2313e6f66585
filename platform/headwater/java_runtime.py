"""Where this machine's Java is."""

from __future__ import annotations

import os
import shutil


def find_java() -> str | None:
    """Return the java that Spark and ZooKeeper will use: the one in `JAVA_HOME`, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        candidate = os.path.join(home, "bin", "java")
        return candidate if os.access(candidate, os.X_OK) else None
    return shutil.which("java")
