"""Loads a user's Python code by file path: functions of stages and sinks, stateful processors.

The module gets a unique name derived from its path: a user's folder called `pipelines` must not shadow this package.
The module is pickled by value, because executors cannot import it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class UserCodeError(Exception):
    """The user's file cannot be loaded, lacks the function, or the function raised; the message gives the position."""


def load(path: str, name: str) -> Callable[..., Any]:
    """Load a function or class from a file. Raises UserCodeError."""
    from pyspark import cloudpickle

    if not os.path.isfile(path):
        raise UserCodeError(f"there is no file {path}")
    module_name = "headwater_user_" + hashlib.sha256(os.path.abspath(path).encode()).hexdigest()[:16]
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    if module_spec is None or module_spec.loader is None:
        raise UserCodeError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise UserCodeError(f"{path}: {where(error, path)}") from error
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    found = getattr(module, name, None)
    if not callable(found):
        del sys.modules[module_name]
        raise UserCodeError(f"{path} has no function '{name}'")
    return found  # type: ignore[no-any-return]


def where(error: BaseException, path: str) -> str:
    """An error with its line in the user's file: `NameError: … (line 3)`."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if isinstance(error, SyntaxError) and error.lineno:
        lines = [error.lineno]
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return f"{type(error).__name__}: {first}" + (f" (line {lines[-1]})" if lines else "")


def apply(inputs: Mapping[str, DataFrame], path: str, function: Callable[..., Any]) -> DataFrame:
    """Call the user's function with a single frame, or with a frame for each input, by the input's name.

    Raises UserCodeError if the function fails or does not return a frame.
    """
    from pyspark.sql import DataFrame

    frames = list(inputs.values())
    result = call(path, function, *frames) if len(frames) == 1 else call(path, function, **inputs)
    if not isinstance(result, DataFrame):
        raise UserCodeError(f"{path}: the function returned {type(result).__name__}, not a DataFrame")
    return result


def call(path: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a user's code. Raises UserCodeError with the line of a failure; Spark's errors on plans pass unchanged."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        return function(*arguments, **named)
    except (AnalysisException, ParseException):
        raise
    except Exception as error:
        raise UserCodeError(f"{path}: {where(error, path)}") from error
