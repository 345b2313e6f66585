"""The reference pages of the configs, made of the tables: `python -m headwater.logtier.config.reference FOLDER` writes
them.

A test compares the pages with the tables, so neither can lag behind.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headwater.logtier.config import BROKER_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS, ConfigDef, ConfigType, render
from headwater.logtier.config.unused import UNUSED

_COMMAND: Final = "make docs"


def pages() -> dict[str, str]:
    """Text by file name."""
    return {"broker_configs.md": _broker_page(), "topic_configs.md": _topic_page()}


def _broker_page() -> str:
    lines = [
        "# Configs of brokers",
        "",
        f"Made of the table in the code by `{_COMMAND}`. Names, types and meanings are Apache Kafka 4.1's. Where a",
        "default is another one, the test that compares them with Kafka's own says why. A *dynamic* config can be",
        "altered while the broker runs (IncrementalAlterConfigs) and is kept; others take effect at the next start.",
        "One that no longer fits what the broker is started with is logged as an error and passed over, not deleted.",
        "",
        *_table(BROKER_CONFIGS),
        "",
        "## Configs of Apache Kafka that mean nothing here",
        "",
        "They are refused with the reason, never taken and ignored.",
        "",
        "| config | why |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in sorted(UNUSED.items())),
    ]
    return "\n".join(lines) + "\n"


def _topic_page() -> str:
    lines = [
        "# Configs of topics and groups",
        "",
        f"Made of the table in the code by `{_COMMAND}`. Names, types, defaults and meanings are Apache Kafka 4.1's.",
        "All of them can be set when a topic is created, and altered later.",
        "",
        *_table(TOPIC_CONFIGS),
        "",
        "## Configs of groups",
        "",
        "Of groups of the consumer protocol (KIP-848), by the resource type GROUP.",
        "",
        *_table(GROUP_CONFIGS),
    ]
    return "\n".join(lines) + "\n"


def _table(configs: Mapping[str, ConfigDef]) -> list[str]:
    rows = ["| config | type | default | limits | what it is |", "|---|---|---|---|---|"]
    for name in sorted(configs):
        config = configs[name]
        notes = [config.doc]
        if config.broker_configs:
            notes.append(f"Default: the broker's `{config.broker_configs[0]}`.")
        if config.dynamic:
            notes.append("*Dynamic.*")
        if config.unsupported is not None:
            notes.append(f"Not every value works: {config.unsupported.reason}.")
        limits = config.validator.expects if config.validator is not None else ""
        cells = (f"`{name}`", config.type.name.lower(), _default(config), limits, " ".join(notes))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _default(config: ConfigDef) -> str:
    if config.default is None:
        return ""
    if config.type is ConfigType.PASSWORD:
        return "(hidden)"
    text = render(config.default)
    return f"`{text}`" if text else "(empty)"


def main() -> None:
    """Write the pages into the folder that is named."""
    folder = Path(sys.argv[1])
    for name, text in pages().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
