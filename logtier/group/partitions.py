"""Partitions of several topics by topic id, as KIP-848's group protocol names them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from uuid import UUID

#: Topic id -> partitions; a topic without partitions is absent.
Partitions = Mapping[UUID, frozenset[int]]
NO_PARTITIONS: Final[Partitions] = MappingProxyType({})
