"""Decides whether a failure is transient: an unavailable broker, network, executor or database; a conflict. Pure.

Every failure that is not known to be transient counts as permanent: a function that raises, a missing column, deleted
records, a violated `fail` expectation. A restart would repeat the failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from headwater.logtier.client.errors import (
    AbortableTransactionError,
    BrokerConnectionError,
    BrokerError,
    ClientError,
    DeliveryTimeoutError,
    ProducerFencedError,
    RequestTimeoutError,
    is_retriable,
)
from headwater.pipelines.errors import PipelineError
from headwater.pipelines.file_systems.file_system import UnavailableError

__all__ = ["causes", "is_transient"]

_CAUSES_MAX: Final = 20

# Messages of Headwater's own code in Spark's worker processes, from which only the text arrives.
_OURS: Final = re.compile(
    r"logtier\.client\.errors\.(?:BrokerConnectionError|RequestTimeoutError|DeliveryTimeoutError)\b"
    r"|no broker answers at |the schema registry does not answer: "
)
_OURS_LASTING: Final = re.compile(
    r"pipelines\.datasource\.errors\.(?:OptionError|DataLossError)\b"
    r"|logtier\.client\.errors\.(?:AuthenticationError|ProducerFencedError|UnsupportedVersionError)\b"
)
_ANSWERED: Final = re.compile(r"the broker answered [A-Z_]+ \((\d{1,5})\)")

# Names of the JVM's exceptions, and Spark's messages about executors and Python workers.
_JVM: Final = re.compile(
    r"java\.net\.(?:Connect|Socket|SocketTimeout|UnknownHost|NoRouteToHost)Exception"
    r"|java\.nio\.channels\.ClosedChannelException"
    r"|java\.util\.concurrent\.TimeoutException"
    r"|java\.sql\.SQL(?:Transient|Recoverable|NonTransientConnection|Timeout)\w*Exception"
    r"|org\.apache\.hadoop\.ipc\.(?:Standby|Retriable)Exception|SafeModeException"
    r"|java\.io\.EOFException: End of File Exception between|BlockMissingException|All datanodes \[?.* are bad"
    r"|could only be (?:written|replicated) to \d+ (?:of|nodes)"
    r"|ExecutorLostFailure|ExecutorDeadException|FetchFailed|Could not find CoarseGrainedScheduler"
    r"|Python worker exited unexpectedly|Python worker failed to connect back"
    r"|Concurrent(?:Append|DeleteRead|DeleteDelete|Transaction|Write)Exception"
    r"|(?:MetadataChanged|ProtocolChanged)Exception|\bDELTA_CONCURRENT_\w+"
    r"|No space left on device"
)


def is_transient(error: BaseException) -> bool:
    """Return whether a restart may succeed after this error.

    >>> is_transient(BrokerConnectionError("no broker answers at b:1")), is_transient(ValueError("x"))
    (True, False)
    >>> is_transient(Exception("Job aborted: ExecutorLostFailure (executor 3 exited)"))
    True
    >>> is_transient(UnavailableError("hdfs://nn/a: the NameNode is in safe mode"))
    True
    """
    for each in causes(error):
        if isinstance(each, PipelineError):
            return False
        if isinstance(each, ClientError):
            return _is_transient_client_error(each)
        if isinstance(each, ConnectionError | TimeoutError | UnavailableError):
            return True
        told = _text_tells(str(each))
        if told is not None:
            return told
    return False


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, by Python's and by Spark's links."""
    each: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if each is None:
            return
        yield each
        cause = each.__cause__ or getattr(each, "_cause", None)
        each = cause if isinstance(cause, BaseException) else None


def _is_transient_client_error(error: ClientError) -> bool:
    if isinstance(error, ProducerFencedError):
        return False  # another run has the stage: a restart would fence it in turn
    if isinstance(error, AbortableTransactionError):
        return True
    if isinstance(error, BrokerError):
        return error.retriable
    return isinstance(error, BrokerConnectionError | RequestTimeoutError | DeliveryTimeoutError)


def _text_tells(text: str) -> bool | None:
    """Return whether a message reports a transient failure in another process; None if unknown."""
    if _OURS_LASTING.search(text):
        return False
    if _OURS.search(text) or _JVM.search(text):
        return True
    answered = [int(code) for code in _ANSWERED.findall(text)]
    return is_retriable(answered[-1]) if answered else None
