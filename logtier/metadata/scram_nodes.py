"""SCRAM credentials in the metadata store: one node per user, never a password; and the key that hides unknown users.

| path | data |
|---|---|
| `/config/scram/<user>` | `{"version":1,"credentials":{"SCRAM-SHA-256":{"salt":...,"storedKey":...,"serverKey":...,"iterations":4096}}}` |
| `/cluster/unknown_users_key` | `{"version":1,"key":...}`: the secret from which the salts of unknown users are derived |
"""  # noqa: E501 (a table)

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import orjson

from headwater.logtier.metadata import paths
from headwater.logtier.security.scram import MECHANISMS, ScramCredential

USER_NODE_LENGTH_MAX: Final = 900
"""Longest name of a user's node, so that its path is within `store.MAX_PATH_LENGTH`."""


def user_node(user: str) -> str:
    """Name of a user's node: characters invalid in a path are escaped.

    >>> user_node("CN=a/b.c"), user_of_node("CN%3Da%2Fb%2Ec")
    ('CN%3Da%2Fb%2Ec', 'CN=a/b.c')
    """
    return quote(user, safe="").replace(".", "%2E")


def user_of_node(name: str) -> str:
    """Return the user of a node's name."""
    return unquote(name)


def scram_path(user: str) -> str:
    """Path of a user's credentials."""
    return f"{paths.SCRAM_USERS}/{user_node(user)}"


def encode_scram(credentials: Mapping[str, ScramCredential]) -> bytes:
    """Data of a user's node: credentials by mechanism."""
    return orjson.dumps(
        {
            "version": 1,
            "credentials": {
                mechanism: {
                    "salt": _text(credential.salt),
                    "storedKey": _text(credential.stored_key),
                    "serverKey": _text(credential.server_key),
                    "iterations": credential.iterations,
                }
                for mechanism, credential in credentials.items()
            },
        }
    )


def decode_scram(path: str, data: bytes) -> dict[str, ScramCredential]:
    """Return the credentials of a node by mechanism; CorruptNodeError, without the data."""
    try:
        credentials = orjson.loads(data)["credentials"]
        return {
            mechanism: ScramCredential(
                _bytes(fields["salt"]), _bytes(fields["storedKey"]), _bytes(fields["serverKey"]), fields["iterations"]
            )
            for mechanism, fields in credentials.items()
            if mechanism in MECHANISMS
        }
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error):
        raise paths.CorruptNodeError(path, b"[hidden]") from None


def encode_unknown_users_key(key: bytes) -> bytes:
    """Data of the node of the key."""
    return orjson.dumps({"version": 1, "key": _text(key)})


def decode_unknown_users_key(path: str, data: bytes) -> bytes:
    """Return the key of the node; CorruptNodeError, without the data."""
    try:
        return _bytes(orjson.loads(data)["key"])
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise paths.CorruptNodeError(path, b"[hidden]") from None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)
