"""Errors a user of the source can act upon, each one line; and how to find that line in what Spark makes of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from headwater.logtier.client.errors import ClientError, OffsetOutOfRangeError
from headwater.logtier.records.compression import CorruptRecordsError

__all__ = ["DataLossError", "OptionError", "SourceError", "client_errors", "report_loss", "user_message"]

logger = logging.getLogger(__name__)


class SourceError(Exception):
    """Reading or writing a topic failed; the message is one line and says what to do."""


class OptionError(SourceError):
    """An option is missing, unknown, or has a value that cannot be."""


class DataLossError(SourceError):
    """Records between the start and the end of a read are gone; `failOnDataLoss=false` goes on without them."""


_RAISED = re.compile(r"pipelines\.datasource\.errors\.(?:SourceError|OptionError|DataLossError): (.+)")


def user_message(error: BaseException) -> str | None:
    """The one line for the user in an exception that Spark wrapped around ours, None if it is not ours.

    >>> user_message(Exception("job aborted: Traceback\\npipelines.datasource.errors.OptionError: no such option"))
    'no such option'
    >>> user_message(ValueError("something else"))
    """
    if isinstance(error, SourceError):
        return str(error)
    match = _RAISED.search(str(error))
    return match.group(1).strip() if match else None


def report_loss(what: str, *, fail: bool) -> None:
    """Reports that records are gone: DataLossError, or with failOnDataLoss=false a warning in the log."""
    if fail:
        raise DataLossError(f"{what}; set failOnDataLoss=false to go on without them")
    logger.warning("%s; going on without them (failOnDataLoss=false)", what)


@contextmanager
def client_errors() -> Iterator[None]:
    """Turns errors of the client and of record bytes into one-line SourceErrors."""
    try:
        yield
    except OffsetOutOfRangeError as error:
        raise DataLossError(
            f"{error}; the records were deleted by retention, or the topic was made anew: "
            "set failOnDataLoss=false to go on without them"
        ) from error
    except (ClientError, CorruptRecordsError) as error:
        raise SourceError(str(error)) from error
