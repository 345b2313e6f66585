"""What loads and archives say of a failure: one line, also about one that nobody foresaw."""

from __future__ import annotations

from headwater.pipelines.errors import PipelineError
from headwater.pipelines.file_systems.file_system import FileSystemError
from headwater.pipelines.loads.errors import LoadError, LoadFailed
from headwater.pipelines.locks.broker_lock import LockHeldError, LockLostError, LockUnavailableError
from headwater.pipelines.spark.session import JVM_LOST_SECONDS_MAX, lost_jvm
from headwater.pipelines.spark.spark_errors import first_line

__all__ = ["failure_reason"]


def failure_reason(error: Exception, *own: type[Exception]) -> str:
    """One line about a failure. `own` are further classes of errors whose text is that line.

    >>> failure_reason(LoadFailed("no broker answers")), failure_reason(KeyError("x"))
    ('no broker answers', "unexpected KeyError: 'x'")
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if isinstance(error, PipelineError):
        return "; ".join(map(str, error.problems))
    locks = (LockHeldError, LockLostError, LockUnavailableError)
    if isinstance(error, (LoadError, LoadFailed, FileSystemError, *locks, *own)):
        return str(error)
    if isinstance(error, Py4JError | PySparkException | ConnectionError):
        return lost_jvm(JVM_LOST_SECONDS_MAX) or first_line(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return f"unexpected {type(error).__name__}: {first_line(error)}"
