"""Names in certificates, as Java writes them."""

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from headwater.logtier.security.distinguished_name import name_text, subject_of


def encoded(*attributes: x509.NameAttribute[str]) -> bytes:
    """The parts of a name in DER, without the sequence around them."""
    data = x509.Name(attributes).public_bytes()
    return data[2:] if data[1] < 0x80 else data[2 + (data[1] & 0x7F) :]


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        (
            [
                x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
                x509.NameAttribute(NameOID.STATE_OR_PROVINCE_NAME, "Berlin"),
                x509.NameAttribute(NameOID.LOCALITY_NAME, "Berlin"),
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Headwater"),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "People"),
                x509.NameAttribute(NameOID.COMMON_NAME, "Alice"),
            ],
            "CN=Alice,OU=People,O=Headwater,L=Berlin,ST=Berlin,C=DE",
        ),
        ([x509.NameAttribute(NameOID.ORGANIZATION_NAME, 'a,b+c"d\\e<f>g;h=i#j')], r"O=a\,b\+c\"d\\e\<f\>g\;h\=i\#j"),
        ([x509.NameAttribute(NameOID.COMMON_NAME, " Jürgen ")], r"CN=\ Jürgen\ "),
        ([x509.NameAttribute(NameOID.COMMON_NAME, "a b", _type=_ASN1Type.BMPString)], "CN=a b"),
        # An attribute without a keyword stands there by its number and in hex.
        ([x509.NameAttribute(NameOID.EMAIL_ADDRESS, "foo@bar")], "1.2.840.113549.1.9.1=#1607666f6f40626172"),
        ([x509.NameAttribute(NameOID.DOMAIN_COMPONENT, "com")], "DC=com"),
        ([x509.NameAttribute(NameOID.USER_ID, "u1")], "UID=u1"),
    ],
)
def test_a_name_is_written_last_part_first_and_escaped(attributes: list[x509.NameAttribute[str]], text: str) -> None:
    assert name_text(encoded(*attributes)) == text


def test_several_attributes_of_one_part_are_joined_by_plus() -> None:
    part = x509.RelativeDistinguishedName(
        [x509.NameAttribute(NameOID.COMMON_NAME, "a"), x509.NameAttribute(NameOID.USER_ID, "b")]
    )
    data = x509.Name([part]).public_bytes()[2:]
    assert set(name_text(data).split("+")) == {"CN=a", "UID=b"}


@pytest.mark.parametrize(
    "data", [b"", b"\x30", b"\x30\x80", b"\x30\x85\x01\x01\x01\x01\x01", b"\x30\x05\x30\x01", b"x" * 50]
)
def test_what_is_no_certificate_is_an_error_and_no_crash(data: bytes) -> None:
    with pytest.raises(ValueError):
        subject_of(data)
