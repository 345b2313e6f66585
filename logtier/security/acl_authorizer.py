"""The authorizer: access control lists, super users and a default, with its answers remembered."""

from collections.abc import Iterable
from typing import Final

from headwater.logtier.security.acls import AclBinding, AclIndex, Verdict
from headwater.logtier.security.operations import AclOperation, ResourceType

ANSWERS_MAX: Final = 100_000
"""Answers that are remembered; then all are forgotten. Names come from clients, so their number has no other limit."""

#: A name that stands for any: super users and a default that allows need no binding.
_ANY_NAME: Final = "hardcode"


class AclAuthorizer:
    """Answers from access control lists.

    Invariant: an answer given after `replace` is by the new lists, whatever was answered before.
    """

    def __init__(self, super_users: Iterable[str] = (), *, allow_if_no_acl: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._index = AclIndex()
        self._answers: dict[tuple[str, str, int, int, str | None], bool] = {}

    def replace(self, bindings: Iterable[AclBinding]) -> None:
        """Answer by these lists from now on."""
        self._index = AclIndex(bindings)
        self._answers.clear()

    def is_authorized(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Tell whether `principal` (`User:alice`), connected from `host`, may do it."""
        key = (principal, host, operation, resource_type, name)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._remember(key, self._decide(principal, host, operation, resource_type, name))
        return answer

    def is_authorized_for_any(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Tell whether there is a resource of this type, by whatever name, on which the principal may do it."""
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
