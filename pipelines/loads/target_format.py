"""The formats of targets. Pure, and light: the command line names them before it imports anything else of loads."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

__all__ = ["TARGET_FORMATS", "TargetFormat"]

TargetFormat: TypeAlias = Literal["delta", "parquet", "orc", "avro", "json"]
TARGET_FORMATS: tuple[str, ...] = get_args(TargetFormat)
