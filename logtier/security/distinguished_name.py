"""The subject of a certificate in Java's form (RFC 2253), so that rules and ACLs made for Kafka apply; pure.

The name is parsed from the certificate's bytes: OpenSSL and its wrappers drop the types of its strings.
"""

from collections.abc import Iterator
from typing import Final

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_TEXT: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # TeletexString
    0x16: "ascii",  # IA5String
    0x1C: "utf-32-be",  # UniversalString
    0x1E: "utf-16-be",  # BMPString
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_VERSION: Final = 0xA0


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER, last part first; ValueError for invalid data."""
    fields = list(_elements(_first(_first(certificate, _SEQUENCE), _SEQUENCE)))
    # version (optional), serial number, signature, issuer, validity, subject
    subject = fields[5 if fields[0][0] == _VERSION else 4]
    if subject[0] != _SEQUENCE:
        raise ValueError("not a certificate")
    return name_text(subject[1])


def name_text(name: bytes) -> str:
    """Return the text of a distinguished name in DER; ValueError for invalid data."""
    parts = []
    for tag, part in _elements(name):
        if tag != _SET:
            raise ValueError("not a distinguished name")
        parts.append("+".join(_attribute(attribute) for _, attribute in _elements(part)))
    return ",".join(reversed(parts))


def _attribute(data: bytes) -> str:
    (kind_tag, kind), (tag, value) = _elements(data)
    if kind_tag != 0x06:
        raise ValueError("not a distinguished name")
    oid = _oid(kind)
    keyword = _KEYWORDS.get(oid)
    if keyword is None or tag not in _TEXT:
        return f"{keyword or oid}=#{_encoded(tag, value).hex()}"
    return f"{keyword}={_escape(value.decode(_TEXT[tag]))}"


def _escape(text: str) -> str:
    """Escape a value.

    >>> _escape(" Smith, Inc. ")
    '\\\\ Smith\\\\, Inc.\\\\ '
    """
    leading = len(text) - len(text.lstrip(" "))
    trailing = len(text.rstrip(" "))
    return "".join(
        f"\\{character}"
        if character in _ESCAPED or (character == " " and (index < leading or index >= trailing))
        else character
        for index, character in enumerate(text)
    )


def _oid(data: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise ValueError("not a distinguished name")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _encoded(tag: int, value: bytes) -> bytes:
    size = len(value)
    if size < 0x80:
        return bytes((tag, size)) + value
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + value


def _first(data: bytes, tag: int) -> bytes:
    for found, value in _elements(data):
        if found == tag:
            return value
        break
    raise ValueError("not a certificate")


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element in `data`."""
    position = 0
    while position < len(data):
        if position + 2 > len(data):
            raise ValueError("the encoding is cut short")
        tag, size = data[position], data[position + 1]
        position += 2
        if size & 0x80:
            count = size & 0x7F
            if not 0 < count <= 4 or position + count > len(data):
                raise ValueError("the encoding is not DER")
            size = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + size > len(data):
            raise ValueError("the encoding is cut short")
        yield tag, data[position : position + size]
        position += size
