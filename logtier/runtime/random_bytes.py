"""Unpredictable bytes as an interface: salts, nonces and keys, which a simulation draws from its seed."""

import secrets
from collections.abc import Callable
from typing import Final, TypeAlias

RandomBytes: TypeAlias = Callable[[int], bytes]
"""Returns a number of bytes."""

#: Bytes of the operating system's secure source.
system_random_bytes: Final[RandomBytes] = secrets.token_bytes
