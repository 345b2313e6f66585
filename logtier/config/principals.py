"""Principals in configs: `User:alice;User:CN=broker,O=headwater`."""


def parse_principals(text: str) -> frozenset[str]:
    """Parse principals separated by semicolons; ValueError for a principal without a type.

    >>> sorted(parse_principals("User:admin; User:CN=a,O=b"))
    ['User:CN=a,O=b', 'User:admin']
    """
    principals = [part.strip() for part in text.split(";") if part.strip()]
    for principal in principals:
        if not all(principal.partition(":")[::2]):
            raise ValueError(f"{principal[:200]!r} is not of the form User:name; separate several with semicolons")
    return frozenset(principals)


def are_principals(text: str) -> bool:
    """Whether a text is a list of principals; the list may be empty."""
    try:
        parse_principals(text)
    except ValueError:
        return False
    return True
