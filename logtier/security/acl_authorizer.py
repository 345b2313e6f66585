"""The authorizer: access control lists, super users and a default, with cached answers."""

from collections.abc import Iterable
from typing import Final

from headwater.logtier.security.acls import AclBinding, AclIndex, Verdict
from headwater.logtier.security.operations import AclOperation, ResourceType

ANSWERS_MAX: Final = 100_000
"""Maximum number of cached answers, after which the cache is cleared: clients choose the names in the keys."""

#: A placeholder for any name: super users and a default that allows need no binding.
_ANY_NAME: Final = "hardcode"


class AclAuthorizer:
    """Decides by access control lists.

    Invariant: after `replace`, every answer follows the new lists.
    """

    def __init__(self, super_users: Iterable[str] = (), *, allow_if_no_acl: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._index = AclIndex()
        self._answers: dict[tuple[str, str, int, int, str | None], bool] = {}

    def replace(self, bindings: Iterable[AclBinding]) -> None:
        """Replace the access control lists."""
        self._index = AclIndex(bindings)
        self._answers.clear()

    def is_authorized(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether `principal` (`User:alice`), connected from `host`, may perform the operation."""
        key = (principal, host, operation, resource_type, name)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._remember(key, self._decide(principal, host, operation, resource_type, name))
        return answer

    def is_authorized_for_any(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether the principal may perform the operation on at least one resource of this type."""
        key = (principal, host, operation, resource_type, None)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._remember(
                key,
                self._decide(principal, host, operation, resource_type, _ANY_NAME)
                or self._index.allows_on_any(principal, host, operation, resource_type),
            )
        return answer

    def _decide(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        if principal in self._super_users:
            return True
        verdict = self._index.verdict(principal, host, operation, resource_type, name)
        return self._allow_if_no_acl if verdict is Verdict.no_binding else verdict is Verdict.allowed

    def _remember(self, key: tuple[str, str, int, int, str | None], answer: bool) -> bool:
        if len(self._answers) >= ANSWERS_MAX:
            self._answers.clear()
        self._answers[key] = answer
        return answer
