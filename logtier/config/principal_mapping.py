"""Rules of `ssl.principal.mapping.rules`: the name in a certificate is mapped to the name of a principal."""

import re
from dataclasses import dataclass
from typing import Final

from headwater.logtier.config.definition import ConfigError

_RULE: Final = re.compile(r"DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_SEPARATOR: Final = re.compile(r"\s*(?:,\s*|$)")


@dataclass(frozen=True, slots=True)
class MappingRule:
    """One rule. The pattern must match the whole name; None (DEFAULT) matches every name and keeps it unchanged."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the principal's name, or None if the pattern does not match."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self.pattern.sub(lambda match: _expand(self.replacement, match), name)
        if self.case:
            return mapped.lower() if self.case == "L" else mapped.upper()
        return mapped


def parse_mapping_rules(text: str) -> tuple[MappingRule, ...]:
    """Parse the rules of a text, in order; ConfigError for an invalid rule.

    >>> map_name("CN=Alice,OU=People,O=Org", parse_mapping_rules("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L,DEFAULT"))
    'alice@people'
    >>> map_name("CN=Alice", parse_mapping_rules("RULE:^CN=(.*?),OU=.*$/$1/,DEFAULT"))
    'CN=Alice'
    """
    config_name = "ssl.principal.mapping.rules"
    text = text.strip()
    rules: list[MappingRule] = []
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        separator = None if found is None else _SEPARATOR.match(text, found.end())
        if found is None or separator is None:
            raise ConfigError(
                f"{config_name}: {text[position:][:100]!r} is no rule; write RULE:pattern/replacement/ (with L or U "
                "behind it for small letters or capitals) or DEFAULT, separated by commas"
            )
        position = separator.end()
        if found[0] == "DEFAULT":
            rules.append(MappingRule())
            continue
        try:
            pattern = re.compile(found[1])
        except re.error as error:
            raise ConfigError(f"{config_name}: {found[1][:100]!r} is no regular expression: {error}") from None
        rules.append(MappingRule(pattern, found[2], found[3]))
    return tuple(rules)


def map_name(name: str, rules: tuple[MappingRule, ...]) -> str | None:
    """Return the result of the first matching rule; None if no rule matches."""
    for rule in rules:
        mapped = rule.apply(name)
        if mapped is not None:
            return mapped
    return None


def _expand(replacement: str, match: re.Match[str]) -> str:
    """Expand as Java does: `$1` is a group, `\\x` is x. The longest number of a group counts; other digits are text."""
    expanded = []
    position = 0
    while position < len(replacement):
        character = replacement[position]
        position += 1
        if character == "\\" and position < len(replacement):
            expanded.append(replacement[position])
            position += 1
            continue
        digits = re.match(r"[0-9]+", replacement[position:]) if character == "$" else None
        group = digits[0] if digits is not None else ""
        while len(group) > 1 and int(group) > (match.re.groups):
            group = group[:-1]
        if group and int(group) <= match.re.groups:
            expanded.append(match[int(group)] or "")
            position += len(group)
        else:
            expanded.append(character)
    return "".join(expanded)
