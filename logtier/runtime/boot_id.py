"""The boot of the machine, which tells processes of one machine from those of another or of an earlier boot."""

from typing import Final

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def system_boot_id() -> str:
    """Return the kernel's id of this boot; empty where there is none."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""
