"""Parser of `sasl.jaas.config`: users and passwords in JAAS syntax."""

import re
from typing import Final

from headwater.logtier.config.definition import ConfigError

_TOKEN: Final = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^\s=;"]+)|([=;]))', re.DOTALL)
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_USER: Final = "user_"


def login_options(config_name: str, text: str) -> tuple[str, dict[str, str]]:
    """Parse a text into its login module and options; the message of a ConfigError holds no value of an option.

    >>> login_options("x", 'a.b.ScramLoginModule required username="me" password="s e\\\\"cret";')
    ('a.b.ScramLoginModule', {'username': 'me', 'password': 's e"cret'})
    """
    tokens: list[tuple[str, bool]] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ConfigError(f"{config_name}: a quotation mark is not closed")
        position = found.end()
        if found[1] is not None:
            tokens.append((re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL), False))
        else:
            tokens.append((found[2] or found[3], found[3] is not None))
    if not tokens or tokens[-1] != (";", True):
        raise ConfigError(f"{config_name}: it must end with a semicolon")
    del tokens[-1]
    if len(tokens) < 2 or tokens[0][1] or tokens[1][0].lower() not in _FLAGS or (";", True) in tokens:
        raise ConfigError(f'{config_name}: write one login module, as a.b.PlainLoginModule required user_x="...";')
    options: dict[str, str] = {}
    for start in range(2, len(tokens), 3):
        triple = tokens[start : start + 3]
        if len(triple) < 3 or triple[0][1] or triple[1] != ("=", True) or triple[2][1]:
            raise ConfigError(f'{config_name}: an option is not of the form name="value"')
        options[triple[0][0]] = triple[2][0]
    return tokens[0][0], options


def plain_users(config_name: str, text: str) -> dict[str, str]:
    """Return the passwords by user from the options `user_<name>="password"` of PLAIN's login module; ConfigError.

    >>> plain_users("x", 'a.b.PlainLoginModule required username="me" user_alice="secret" user_bob=b;')
    {'alice': 'secret', 'bob': 'b'}
    """
    module, options = login_options(config_name, text)
    if not module.endswith("PlainLoginModule"):
        raise ConfigError(f"{config_name}: the login module of PLAIN is PlainLoginModule")
    return {
        name.removeprefix(_USER): password
        for name, password in options.items()
        if name.startswith(_USER) and len(name) > len(_USER)
    }
