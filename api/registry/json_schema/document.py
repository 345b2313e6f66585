"""A JSON Schema with its referenced documents, checked and with all references resolvable."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

from headwater.api.registry.json_schema import keywords
from headwater.pipelines.schemas.errors import DEPTH_MAX, InvalidSchemaError
from headwater.pipelines.schemas.json_text import JsonTextError, parse_json

_METASCHEMA: Final = re.compile(r"https?://json-schema\.org/(draft-0\d|draft/20\d\d-\d\d)/schema")


def load(text: str) -> Any:
    """Parse the text of a schema.

    Raises:
        InvalidSchemaError: the text is not JSON.
    """
    try:
        return parse_json(text, parse_constant=_no_constant)
    except JsonTextError as error:
        raise InvalidSchemaError(f"not JSON that can be taken: {error}") from None
    except json.JSONDecodeError as error:
        raise InvalidSchemaError(f"not JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise InvalidSchemaError(f"not JSON: {name} is no number")


class Document:
    """The root of a schema, and the targets of its references.

    Invariant: every reference of the root and of the referenced documents has a target. Raw schemas are compared by
    identity and therefore never copied.
    """

    def __init__(self, root: Any, used: Mapping[str, Any]) -> None:
        """Index a schema and its referenced documents, by the names of the references.

        Raises:
            InvalidSchemaError: a keyword has an invalid value, or a reference has no target.
        """
        self.root = root
        self._named = used
        self._bases: dict[int, str] = {}
        self._by_uri: dict[str, Any] = {}
        draft = root.get("$schema", "") if isinstance(root, dict) else ""
        #: Drafts before 2019 ignore whatever stands beside a reference.
        self.ignores_beside_references = not (isinstance(draft, str) and re.search(r"2019-09|2020-12", draft))
        references: list[tuple[dict[str, Any], str]] = []
        for name, raw in used.items():
            self._by_uri.setdefault(name, raw)
            self._index(raw, name, name, 0, references)
        self._by_uri[""] = root
        self._index(root, "", "#", 0, references)
        for raw, path in references:
            self._target(raw, path)
        #: Every schema that stands somewhere else.
        self.references = [raw for raw, _ in references]

    def resolve(self, raw: Mapping[str, Any]) -> Any:
        """Return the target of a reference: a schema, which may be a reference again."""
        return self._target(raw, "#")

    def _index(self, raw: Any, base: str, path: str, depth: int, references: list[tuple[dict[str, Any], str]]) -> None:
        if depth > DEPTH_MAX:
            raise InvalidSchemaError(f"the schema nests deeper than {DEPTH_MAX}")
        keywords.check(raw, path)
        if not isinstance(raw, dict) or id(raw) in self._bases:
            return
        identity = raw.get("$id", raw.get("id"))
        if isinstance(identity, str):
            base = urljoin(base, identity)
            self._by_uri.setdefault(urldefrag(base).url, raw)
            if identity.startswith("#"):
                self._by_uri.setdefault(base, raw)
        self._bases[id(raw)] = base
        for name in ("$anchor", "$dynamicAnchor"):
            if name in raw:
                self._by_uri.setdefault(f"{urldefrag(base).url}#{raw[name]}", raw)
        if reference(raw) is not None:
            references.append((raw, path))
        for place, inner in keywords.subschemas(raw):
            self._index(inner, base, f"{path}/{place}", depth + 1, references)

    def _target(self, raw: Mapping[str, Any], path: str) -> Any:
        text = reference(raw)
        assert text is not None
        base = self._bases.get(id(raw), "")
        name, fragment = urldefrag(text)
        uri = urldefrag(urljoin(base, name)).url if name else urldefrag(base).url
        if _METASCHEMA.fullmatch(uri):
            return True
        document = self._named.get(name) if name else None
        if document is None:
            if uri not in self._by_uri:
                raise InvalidSchemaError(f"{path}: {text!r} cannot be resolved: no reference has this name")
            document = self._by_uri[uri]
        if not fragment:
            return document
        if fragment.startswith("/"):
            return self._by_pointer(document, fragment, text, path)
        for candidate in (f"{uri}#{fragment}", f"{name}#{fragment}"):
            if candidate in self._by_uri:
                return self._by_uri[candidate]
        raise InvalidSchemaError(f"{path}: {text!r} cannot be resolved: there is no such anchor")

    def _by_pointer(self, document: Any, pointer: str, text: str, path: str) -> Any:
        found = document
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            else:
                raise InvalidSchemaError(f"{path}: {text!r} cannot be resolved: there is no {key[:100]!r}")
        if isinstance(found, dict) and id(found) not in self._bases:
            # A place that is no keyword's, such as "components".
            inner: list[tuple[dict[str, Any], str]] = []
            self._index(found, self._bases.get(id(document), ""), pointer, 0, inner)
            for raw, place in inner:
                self._target(raw, place)
        elif not isinstance(found, dict | bool):
            raise InvalidSchemaError(f"{path}: {text!r} leads to something that is no schema")
        return found


def reference(raw: Mapping[str, Any]) -> str | None:
    """Return the URI of a schema's `$ref` or `$dynamicRef`, None for a schema without a reference."""
    for name in ("$ref", "$dynamicRef"):
        if isinstance(raw.get(name), str):
            found: str = raw[name]
            return found
    return None
