"""One-line errors that a user of the source can act upon, and their extraction from Spark's exceptions."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from headwater.logtier.client.errors import ClientError, LogTruncationError, OffsetOutOfRangeError
from headwater.logtier.records.compression import CorruptRecordsError

__all__ = [
    "DataLossError",
    "OptionError",
    "SourceError",
    "client_errors",
    "is_source_failure",
    "report_loss",
    "user_message",
]

logger = logging.getLogger(__name__)


class SourceError(Exception):
    """Reading or writing a topic failed; the message is one line and names a remedy."""


class OptionError(SourceError):
    """An option is missing, unknown, or has an invalid value."""


class DataLossError(SourceError):
    """Records between the start and the end of a read are deleted; `failOnDataLoss=false` continues without them."""


_RAISED = re.compile(r"pipelines\.datasource\.errors\.(SourceError|OptionError|DataLossError): (.+)")


def user_message(error: BaseException) -> str | None:
    """The one-line message of a SourceError inside Spark's exception, None for other exceptions.

    >>> user_message(Exception("job aborted: Traceback\\npipelines.datasource.errors.OptionError: no such option"))
    'no such option'
    >>> user_message(ValueError("something else"))
    """
    if isinstance(error, SourceError):
        return str(error)
    match = _RAISED.search(str(error))
    return match.group(2).strip() if match else None


def is_source_failure(error: BaseException) -> bool:
    """Whether Spark's exception says that a topic could not be read or written, and not that an option is wrong.

    >>> is_source_failure(Exception("Traceback\\npipelines.datasource.errors.SourceError: no broker answers"))
    True
    >>> is_source_failure(Exception("Traceback\\npipelines.datasource.errors.OptionError: no such option"))
    False
    """
    match = _RAISED.search(str(error))
    return match is not None and match.group(1) != OptionError.__name__


def report_loss(what: str, *, fail: bool) -> None:
    """Report deleted records: raises DataLossError, or logs a warning with failOnDataLoss=false."""
    if fail:
        raise DataLossError(f"{what}; set failOnDataLoss=false to go on without them")
    logger.warning("%s; going on without them (failOnDataLoss=false)", what)


@contextmanager
def client_errors() -> Iterator[None]:
    """Convert errors of the client and of record bytes to one-line SourceErrors."""
    try:
        yield
    except OffsetOutOfRangeError as error:
        raise DataLossError(
            f"{error}; the records were deleted by retention, or the topic was made anew: "
            "set failOnDataLoss=false to go on without them"
        ) from error
    except LogTruncationError as error:
        raise DataLossError(f"{error}; set failOnDataLoss=false to go on without them") from error
    except (ClientError, CorruptRecordsError) as error:
        raise SourceError(str(error)) from error
