"""Documents are tested artefacts: links lead somewhere, pages are listed, not_implemented.md agrees with the code."""

from __future__ import annotations

import os
import re
from pathlib import Path

from headwater.cli.main import VERBS
from headwater.logtier.handlers.registry import HANDLERS

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
# A row of one of the two tables: | key | API | ...
ROW = re.compile(r"^\| (\d+) \| (\w+) \| ([^|]+) \|(?: ([^|]+) \|)?", re.MULTILINE)

LINE_MAX = 120
# Decisions and old figures stay as they were written; the others are not wrapped yet. Entries may only go.
UNWRAPPED = (
    "docs/adr",
    "docs/benchmark_history.md",
    "docs/reference/pipeline_yaml.md",
)
INDEX = Path("docs/README.md")
DECISIONS = Path("docs/adr/README.md")

# What a broker of Apache Kafka 4.1.1 answers to ApiVersions on a client's connection.
KAFKA_4_1_1: dict[int, tuple[str, int, int]] = {
    0: ("Produce", 0, 13),
    1: ("Fetch", 4, 18),
    2: ("ListOffsets", 1, 10),
    3: ("Metadata", 0, 13),
    8: ("OffsetCommit", 2, 9),
    9: ("OffsetFetch", 1, 9),
    10: ("FindCoordinator", 0, 6),
    11: ("JoinGroup", 0, 9),
    12: ("Heartbeat", 0, 4),
    13: ("LeaveGroup", 0, 5),
    14: ("SyncGroup", 0, 5),
    15: ("DescribeGroups", 0, 6),
    16: ("ListGroups", 0, 5),
    17: ("SaslHandshake", 0, 1),
    18: ("ApiVersions", 0, 4),
    19: ("CreateTopics", 2, 7),
    20: ("DeleteTopics", 1, 6),
    21: ("DeleteRecords", 0, 2),
    22: ("InitProducerId", 0, 5),
    23: ("OffsetForLeaderEpoch", 2, 4),
    24: ("AddPartitionsToTxn", 0, 5),
    25: ("AddOffsetsToTxn", 0, 4),
    26: ("EndTxn", 0, 5),
    27: ("WriteTxnMarkers", 1, 1),
    28: ("TxnOffsetCommit", 0, 5),
    29: ("DescribeAcls", 1, 3),
    30: ("CreateAcls", 1, 3),
    31: ("DeleteAcls", 1, 3),
    32: ("DescribeConfigs", 1, 4),
    33: ("AlterConfigs", 0, 2),
    34: ("AlterReplicaLogDirs", 1, 2),
    35: ("DescribeLogDirs", 1, 4),
    36: ("SaslAuthenticate", 0, 2),
    37: ("CreatePartitions", 0, 3),
    38: ("CreateDelegationToken", 1, 3),
    39: ("RenewDelegationToken", 1, 2),
    40: ("ExpireDelegationToken", 1, 2),
    41: ("DescribeDelegationToken", 1, 3),
    42: ("DeleteGroups", 0, 2),
    43: ("ElectLeaders", 0, 2),
    44: ("IncrementalAlterConfigs", 0, 1),
    45: ("AlterPartitionReassignments", 0, 1),
    46: ("ListPartitionReassignments", 0, 0),
    47: ("OffsetDelete", 0, 0),
    48: ("DescribeClientQuotas", 0, 1),
    49: ("AlterClientQuotas", 0, 1),
    50: ("DescribeUserScramCredentials", 0, 0),
    51: ("AlterUserScramCredentials", 0, 0),
    55: ("DescribeQuorum", 0, 2),
    57: ("UpdateFeatures", 0, 2),
    60: ("DescribeCluster", 0, 2),
    61: ("DescribeProducers", 0, 0),
    64: ("UnregisterBroker", 0, 0),
    65: ("DescribeTransactions", 0, 0),
    66: ("ListTransactions", 0, 2),
    68: ("ConsumerGroupHeartbeat", 0, 1),
    69: ("ConsumerGroupDescribe", 0, 1),
    74: ("ListConfigResources", 0, 1),
    75: ("DescribeTopicPartitions", 0, 0),
    76: ("ShareGroupHeartbeat", 1, 1),
    77: ("ShareGroupDescribe", 1, 1),
    78: ("ShareFetch", 1, 1),
    79: ("ShareAcknowledge", 1, 1),
    80: ("AddRaftVoter", 0, 0),
    81: ("RemoveRaftVoter", 0, 0),
    83: ("InitializeShareGroupState", 0, 0),
    84: ("ReadShareGroupState", 0, 0),
    85: ("WriteShareGroupState", 0, 0),
    86: ("DeleteShareGroupState", 0, 0),
    87: ("ReadShareGroupStateSummary", 0, 0),
    90: ("DescribeShareGroupOffsets", 0, 0),
    91: ("AlterShareGroupOffsets", 0, 0),
    92: ("DeleteShareGroupOffsets", 0, 0),
}


def documents(texts: dict[Path, str]) -> dict[Path, str]:
    return {path: text for path, text in texts.items() if path.suffix == ".md"}


def slug(heading: str) -> str:
    """The anchor of a heading, as Git hosts make it.

    >>> slug("Two `commands`, done")
    'two-commands-done'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_link_leads_somewhere(root: Path, texts: dict[Path, str]) -> None:
    broken = []
    for path, text in documents(texts).items():
        for target in LINK.findall(text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (root / path).parent / name if name else root / path
            if not file.exists():
                broken.append(f"{path}: {target}")
            elif anchor and anchor not in {slug(h) for h in HEADING.findall(file.read_text())}:
                broken.append(f"{path}: {target} (no such heading)")
    assert broken == []


def linked_from(page: Path, texts: dict[Path, str]) -> set[Path]:
    """The files of the tree that a page links to."""
    targets = [target.partition("#")[0] for target in LINK.findall(texts[page]) if not re.match(r"[a-z]+:", target)]
    return {Path(os.path.normpath(page.parent / name)) for name in targets if name}


def test_every_page_is_listed_in_the_index(texts: dict[Path, str]) -> None:
    pages = {path for path in documents(texts) if path.is_relative_to("docs")} - {INDEX}
    decisions = {path for path in pages if path.is_relative_to(DECISIONS.parent)} - {DECISIONS}
    assert linked_from(INDEX, texts) == pages - decisions
    assert linked_from(DECISIONS, texts) >= decisions


def test_the_index_has_one_line_for_each_page(texts: dict[Path, str]) -> None:
    lines = texts[INDEX].splitlines()
    assert [line for line in lines if line.startswith(" ")] == []
    entries = [line for line in lines if "](" in line]
    assert [line for line in entries if not re.fullmatch(r"- \[[^\]]+\]\([^)]+\): .*[^.]", line)] == []
    assert len(entries) == len(linked_from(INDEX, texts))


def test_every_page_that_code_and_messages_name_exists(root: Path, texts: dict[Path, str]) -> None:
    broken = [
        f"{path}: {name}"
        for path, text in texts.items()
        if path.suffix in {".py", ".yaml", ".toml", ".sh"} or path.name == "Makefile"
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", text)
        if not (root / name).exists()
    ]
    assert broken == []


def long_lines(text: str) -> list[int]:
    """The numbers of the lines that are too long; rows of tables cannot be broken."""
    lines = enumerate(text.splitlines(), 1)
    return [number for number, line in lines if len(line) > LINE_MAX and not line.startswith("|")]


def test_no_line_of_prose_is_too_long(prose: dict[Path, str]) -> None:
    wrapped = {path: text for path, text in prose.items() if not any(path.is_relative_to(name) for name in UNWRAPPED)}
    assert len(wrapped) > 20
    assert {str(path): lines for path, text in wrapped.items() if (lines := long_lines(text))} == {}


def test_what_is_not_wrapped_yet_has_long_lines(prose: dict[Path, str]) -> None:
    long = {path for path, text in prose.items() if long_lines(text)}
    assert [name for name in UNWRAPPED if not any(path.is_relative_to(name) for path in long)] == []


def test_every_path_the_file_map_names_exists(root: Path, texts: dict[Path, str]) -> None:
    text = texts[Path("docs/ARCHITECTURE.md")]
    named = set(re.findall(r"`((?:logtier|pipelines|api|platform|tests|conf|docs|setup)/[\w./-]*)`", text))
    assert len(named) > 20
    assert sorted(name for name in named if not (root / name).exists()) == []


def test_every_decision_has_its_number_once_and_in_order(sources: list[Path]) -> None:
    numbers = sorted(int(p.name[:4]) for p in sources if p.parent == Path("docs/adr") and p.name != "README.md")
    assert numbers == list(range(1, len(numbers) + 1))


def section(texts: dict[Path, str], heading: str) -> str:
    text = texts[Path("docs/not_implemented.md")]
    return text.partition(f"### {heading}\n")[2].partition("\n#")[0]


def test_every_missing_api_stands_in_not_implemented_and_no_other(texts: dict[Path, str]) -> None:
    rows = {int(row[0]): row[1] for row in ROW.findall(section(texts, "APIs that are missing"))}
    missing = {key: name for key, (name, _, _) in KAFKA_4_1_1.items() if key not in HANDLERS}
    assert rows == missing


def test_every_api_with_fewer_versions_than_kafkas_stands_in_not_implemented(
    texts: dict[Path, str],
) -> None:
    rows = {int(row[0]): (row[1], row[2].strip()) for row in ROW.findall(section(texts, "Versions that are missing"))}
    differing = {}
    for key, (name, first, last) in KAFKA_4_1_1.items():
        if key not in HANDLERS:
            continue
        served = HANDLERS[key].VERSIONS
        # Versions above are for brokers only.
        versions = (served[0], min(served[1], getattr(HANDLERS[key], "ADVERTISED_VERSIONS", served)[1]))
        if (first, last) != versions:
            differing[key] = (name, f"{versions[0]}-{versions[1]}")
    assert rows == differing


def test_no_api_goes_beyond_the_kafka_we_say_we_are() -> None:
    assert sorted(HANDLERS.keys() - KAFKA_4_1_1.keys()) == []
    for key, module in HANDLERS.items():
        name, first, last = KAFKA_4_1_1[key]
        advertised = getattr(module, "ADVERTISED_VERSIONS", module.VERSIONS)
        assert first <= advertised[0] <= advertised[1] <= last, name


def test_every_command_a_document_names_exists(texts: dict[Path, str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", texts[Path("Makefile")], re.MULTILINE))
    unknown = []
    for path, text in documents(texts).items():
        blocks = "\n".join(a or b for a, b in re.findall(r"```\w*\n(.*?)```|`([^`\n]+)`", text, re.DOTALL))
        for line in blocks.splitlines():
            if (made := re.match(r"(?:[A-Z]+=\S+ )*make ([a-z-]+)", line)) and made[1] not in targets:
                unknown.append(f"{path}: make {made[1]}")
            if (verb := re.match(r"headwater ([a-z][a-z-]*)", line)) and verb[1] not in VERBS:
                unknown.append(f"{path}: headwater {verb[1]}")
    assert unknown == []
