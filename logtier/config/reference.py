"""Reference pages of the configs, generated from the tables; `python -m headwater.logtier.config.reference FOLDER`.

A test compares the pages with the tables.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headwater.logtier.config import BROKER_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS, ConfigDef, ConfigType, render
from headwater.logtier.config.topic import HEADWATER_TOPIC_CONFIGS
from headwater.logtier.config.unused import UNUSED

_COMMAND: Final = "make docs"


def pages() -> dict[str, str]:
    """Return the text of each page, by file name."""
    return {"broker_configs.md": _broker_page(), "topic_configs.md": _topic_page()}


def _broker_page() -> str:
    lines = [
        "# Configs of brokers",
        "",
        f"`{_COMMAND}` generates this page from the tables in the code. Names, types and meanings are those of Apache",
        "Kafka 4.1, and of Apache Kafka 3.9 for ZooKeeper. A test compares each default with Kafka's and gives the",
        "reason for a difference. A *dynamic* config can be altered while the broker runs (IncrementalAlterConfigs)",
        "and survives a restart; other configs take effect at the next start. If a stored config contradicts the",
        "configs given at the start, the broker logs an error, ignores the stored config and does not delete it.",
        "",
        *_table(BROKER_CONFIGS),
        "",
        "## Configs of Apache Kafka without effect here",
        "",
        "The broker rejects these configs and reports the reason.",
        "",
        "| config | reason |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in sorted(UNUSED.items())),
    ]
    return "\n".join(lines) + "\n"


def _topic_page() -> str:
    lines = [
        "# Configs of topics and groups",
        "",
        f"`{_COMMAND}` generates this page from the tables in the code. Names, types, defaults and meanings are those",
        "of Apache Kafka 4.1; configs of topics that Kafka lacks are marked. Every config can be set at the creation",
        "of a topic and altered later.",
        "",
        *_table(TOPIC_CONFIGS),
        "",
        "## Configs of groups",
        "",
        "Configs of groups of the consumer protocol (KIP-848), with the resource type GROUP.",
        "",
        *_table(GROUP_CONFIGS),
    ]
    return "\n".join(lines) + "\n"


def _table(configs: Mapping[str, ConfigDef]) -> list[str]:
    rows = ["| config | type | default | limits | meaning |", "|---|---|---|---|---|"]
    for name in sorted(configs):
        config = configs[name]
        notes = [f"*Not in Kafka.* {config.doc}" if name in HEADWATER_TOPIC_CONFIGS else config.doc]
        if config.broker_configs:
            notes.append(f"Default: the broker's `{config.broker_configs[0]}`.")
        if config.dynamic:
            notes.append("*Dynamic.*")
        if config.unsupported is not None:
            notes.append(f"Not every value is supported: {config.unsupported.reason}.")
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
    """Write the pages into the folder given on the command line."""
    folder = Path(sys.argv[1])
    for name, text in pages().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
