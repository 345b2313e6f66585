"""Access control lists: bindings, filters, and decisions. Pure.

Semantics of Kafka's StandardAuthorizer: any matching DENY wins; ALLOW of READ, WRITE, DELETE or ALTER allows DESCRIBE,
ALLOW of ALTER_CONFIGS allows DESCRIBE_CONFIGS; a DENY implies nothing. `*` as a literal resource name, as a host and in
`User:*` matches all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeVar

from headwater.logtier.security.operations import CLUSTER_NAME, AclOperation, ResourceType

Code = TypeVar("Code", bound=IntEnum)

WILDCARD: Final = "*"
"""As a literal resource name or as a host: matches all."""

WILDCARD_PRINCIPAL: Final = "User:*"


class PatternType(IntEnum):
    """The pattern type of a resource name; `any` and `match` only in filters."""

    unknown = 0
    any = 1
    match = 2
    literal = 3
    prefixed = 4


class PermissionType(IntEnum):
    """The effect of a binding; `any` only in filters."""

    unknown = 0
    any = 1
    deny = 2
    allow = 3


class AclBinding(NamedTuple):
    """One rule: a principal on a host may, or may not, perform an operation on matching resources."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: PermissionType

    def __str__(self) -> str:
        """Return one line for logs.

        >>> str(
        ...     AclBinding(
        ...         ResourceType.topic, "a", PatternType.literal, "User:x", "*", AclOperation.read, PermissionType.allow
        ...     )
        ... )
        "ALLOW READ on TOPIC:LITERAL:'a' to 'User:x' from '*'"
        """
        resource = f"{self.resource_type.name.upper()}:{self.pattern_type.name.upper()}:{self.resource_name!r}"
        what = f"{self.permission.name.upper()} {self.operation.name.upper()} on {resource}"
        return f"{what} to {self.principal!r} from {self.host!r}"


class AclFilter(NamedTuple):
    """A filter of bindings; None and `any` match every value.

    With the pattern type `match`, the name is that of a resource, and every binding that applies to it matches.
    """

    resource_type: ResourceType = ResourceType.any
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.any
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.any
    permission: PermissionType = PermissionType.any

    def matches(self, binding: AclBinding) -> bool:
        """Whether the filter matches the binding."""
        return (
            self.resource_type in (ResourceType.any, binding.resource_type)
            and self._matches_name(binding)
            and (self.principal is None or self.principal == binding.principal)
            and (self.host is None or self.host == binding.host)
            and self.operation in (AclOperation.any, binding.operation)
            and self.permission in (PermissionType.any, binding.permission)
        )

    def _matches_name(self, binding: AclBinding) -> bool:
        wanted, found = self.pattern_type, binding.pattern_type
        if wanted not in (PatternType.any, PatternType.match, found):
            return False
        name = self.resource_name
        if name is None:
            return True
        if wanted is not PatternType.match:
            return name == binding.resource_name
        if found is PatternType.literal:
            return binding.resource_name in (name, WILDCARD)
        return name.startswith(binding.resource_name)


class Verdict(Enum):
    """The decision of the bindings on one operation."""

    allowed = "allowed"
    denied = "denied"
    #: No binding matches the resource: the configured default applies.
    no_binding = "no binding"


#: Operations allowed by an ALLOW of other operations.
_IMPLYING: Final[Mapping[AclOperation, frozenset[AclOperation]]] = {
    AclOperation.describe: frozenset(
        {AclOperation.describe, AclOperation.read, AclOperation.write, AclOperation.delete, AclOperation.alter}
    ),
    AclOperation.describe_configs: frozenset({AclOperation.describe_configs, AclOperation.alter_configs}),
}


def applies(binding: AclBinding, principal: str, host: str, operation: AclOperation) -> bool:
    """Whether a binding with a matching resource applies to this principal, host and operation."""
    if binding.principal not in (principal, WILDCARD_PRINCIPAL) or binding.host not in (WILDCARD, host):
        return False
    if binding.operation in (AclOperation.all, operation):
        return True
    return binding.permission is PermissionType.allow and binding.operation in _IMPLYING.get(operation, ())


@dataclass(slots=True)
class _Section:
    """The bindings of one resource type by name; prefixed ones are looked up by their distinct lengths."""

    literal: dict[str, list[AclBinding]]
    prefixed: dict[str, list[AclBinding]]
    prefix_lengths: tuple[int, ...]


class AclIndex:
    """A set of bindings, indexed by resource.

    Invariant: a look-up costs two dictionary accesses and one more for each distinct length among the prefixes.
    """

    def __init__(self, bindings: Iterable[AclBinding] = ()) -> None:
        self._sections: dict[ResourceType, _Section] = {}
        for binding in bindings:
            section = self._sections.setdefault(binding.resource_type, _Section({}, {}, ()))
            names = section.literal if binding.pattern_type is PatternType.literal else section.prefixed
            names.setdefault(binding.resource_name, []).append(binding)
        for section in self._sections.values():
            section.prefix_lengths = tuple(sorted({len(name) for name in section.prefixed}))

    def about(self, resource_type: ResourceType, name: str) -> list[AclBinding]:
        """Return the bindings whose pattern matches a resource, for any principal."""
        section = self._sections.get(resource_type)
        if section is None:
            return []
        found = list(section.literal.get(name, ()))
        if name != WILDCARD:
            found += section.literal.get(WILDCARD, ())
        for length in section.prefix_lengths:
            if length > len(name):
                break
            found += section.prefixed.get(name[:length], ())
        return found

    def verdict(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> Verdict:
        """Decide on one operation; a DENY overrides any ALLOW."""
        about = self.about(resource_type, name)
        if not about:
            return Verdict.no_binding
        permissions = {binding.permission for binding in about if applies(binding, principal, host, operation)}
        # Bindings of the resource for other principals exclude all others, regardless of the default.
        return Verdict.allowed if permissions == {PermissionType.allow} else Verdict.denied

    def allows_on_any(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether the principal may perform the operation on at least one resource of the type (KIP-679).

        Decided by the bindings alone: an ALLOW counts unless a DENY covers all that it covers. No operation implies
        another here.
        """
        section = self._sections.get(resource_type)
        if section is None:
            return False

        def has(bindings: Iterable[AclBinding], permission: PermissionType) -> bool:
            return any(
                binding.permission is permission
                and binding.operation in (operation, AclOperation.all)
                and applies(binding, principal, host, operation)
                for binding in bindings
            )

        if has(section.literal.get(WILDCARD, ()), PermissionType.deny):
            return False
        if has(section.literal.get(WILDCARD, ()), PermissionType.allow):
            return True
        denied = {name for name, bindings in section.prefixed.items() if has(bindings, PermissionType.deny)}

        def is_shut(name: str) -> bool:
            return any(name[:length] in denied for length in section.prefix_lengths)

        return any(
            not is_shut(name) and has(bindings, PermissionType.allow) for name, bindings in section.prefixed.items()
        ) or any(
            not is_shut(name) and has(bindings, PermissionType.allow) and not has(bindings, PermissionType.deny)
            for name, bindings in section.literal.items()
            if name != WILDCARD
        )


def binding_problem(binding: AclBinding) -> str | None:
    """Return why a binding is invalid; None if it is valid.

    >>> binding_problem(
    ...     AclBinding(
    ...         ResourceType.cluster, "x", PatternType.literal, "User:a", "*", AclOperation.read, PermissionType.allow
    ...     )
    ... )
    'The only valid name for the CLUSTER resource is kafka-cluster'
    """
    if binding.resource_type in (ResourceType.unknown, ResourceType.any):
        return f"Invalid resourceType {binding.resource_type.name.upper()}"
    if not binding.resource_name:
        return "Invalid empty resource name"
    if binding.resource_type is ResourceType.cluster and binding.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if binding.pattern_type not in (PatternType.literal, PatternType.prefixed):
        return f"Invalid patternType {binding.pattern_type.name.upper()}"
    if binding.operation in (AclOperation.unknown, AclOperation.any):
        return f"Invalid operation {binding.operation.name.upper()}"
    if binding.permission not in (PermissionType.deny, PermissionType.allow):
        return f"Invalid permissionType {binding.permission.name.upper()}"
    if ":" not in binding.principal:
        return (
            f"Could not parse principal from `{binding.principal[:200]}` (no colon is present separating the principal "
            "type from the principal name)"
        )
    return None


def filter_problem(wanted: AclFilter) -> str | None:
    """Return why a filter is invalid; None if it is valid."""
    if wanted.resource_type is ResourceType.unknown or wanted.pattern_type is PatternType.unknown:
        return "Unknown patternFilter."
    if wanted.operation is AclOperation.unknown or wanted.permission is PermissionType.unknown:
        return "Unknown entryFilter."
    return None


def from_code(kind: type[Code], code: int) -> Code:
    """Convert a number of the protocol to an enumeration's value; an unknown number to `unknown` (0).

    >>> from_code(PermissionType, 3), from_code(PermissionType, 77)
    (<PermissionType.allow: 3>, <PermissionType.unknown: 0>)
    """
    try:
        return kind(code)
    except ValueError:
        return kind(0)
