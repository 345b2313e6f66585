"""What access control lists allow, what filters find, what cannot be said, and what the log says of a denial."""

import logging

import pytest

from headwater.logtier.config.principals import are_principals, parse_principals
from headwater.logtier.security.acl_authorizer import ANSWERS_MAX, AclAuthorizer
from headwater.logtier.security.acls import (
    AclBinding,
    AclFilter,
    PatternType,
    PermissionType,
    binding_problem,
    filter_problem,
    from_code,
)
from headwater.logtier.security.audit_log import log_denial
from headwater.logtier.security.operations import AclOperation, ResourceType

HERE = "10.0.0.1"


def acl(
    name: str = "orders",
    operation: AclOperation = AclOperation.read,
    *,
    principal: str = "User:alice",
    host: str = "*",
    pattern: PatternType = PatternType.literal,
    deny: bool = False,
    kind: ResourceType = ResourceType.topic,
) -> AclBinding:
    permission = PermissionType.deny if deny else PermissionType.allow
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def may(
    bindings: list[AclBinding], operation: AclOperation, name: str = "orders", principal: str = "User:alice"
) -> bool:
    authorizer = AclAuthorizer()
    authorizer.replace(bindings)
    return authorizer.is_authorized(principal, HERE, operation, ResourceType.topic, name)


def test_nobody_may_do_anything_without_a_binding() -> None:
    assert not may([], AclOperation.read)


@pytest.mark.parametrize(
    "implying", [AclOperation.read, AclOperation.write, AclOperation.delete, AclOperation.alter, AclOperation.all]
)
def test_whoever_may_use_a_topic_may_describe_it(implying: AclOperation) -> None:
    assert may([acl(operation=implying)], AclOperation.describe)


def test_whoever_may_alter_configs_may_describe_them() -> None:
    assert may([acl(operation=AclOperation.alter_configs)], AclOperation.describe_configs)
    assert not may([acl(operation=AclOperation.alter)], AclOperation.describe_configs)


def test_a_denial_to_read_does_not_deny_to_describe() -> None:
    bindings = [acl(operation=AclOperation.read, deny=True), acl(operation=AclOperation.describe)]
    assert may(bindings, AclOperation.describe)
    assert not may(bindings, AclOperation.read)


def test_one_denial_is_stronger_than_every_permission() -> None:
    permissions = [acl(), acl("*"), acl("ord", pattern=PatternType.prefixed), acl(principal="User:*")]
    assert may(permissions, AclOperation.read)
    assert not may([*permissions, acl("o", pattern=PatternType.prefixed, deny=True)], AclOperation.read)


def test_a_binding_of_another_host_or_principal_does_not_count() -> None:
    assert not may([acl(host="10.0.0.2"), acl(principal="User:bob")], AclOperation.read)
    assert may([acl(host=HERE)], AclOperation.read)


def test_where_everybody_is_allowed_without_bindings_a_binding_for_others_shuts_out() -> None:
    authorizer = AclAuthorizer(allow_if_no_acl=True)
    authorizer.replace([acl(principal="User:bob")])
    assert authorizer.is_authorized("User:alice", HERE, AclOperation.read, ResourceType.topic, "free")
    assert not authorizer.is_authorized("User:alice", HERE, AclOperation.read, ResourceType.topic, "orders")
    assert authorizer.is_authorized("User:alice", HERE, AclOperation.read, ResourceType.group, "orders")


def test_a_super_user_is_above_every_denial() -> None:
    authorizer = AclAuthorizer({"User:admin"})
    authorizer.replace([acl("*", AclOperation.all, principal="User:*", deny=True)])
    assert authorizer.is_authorized("User:admin", HERE, AclOperation.write, ResourceType.topic, "orders")
    assert authorizer.is_authorized_for_any("User:admin", HERE, AclOperation.write, ResourceType.topic)


def test_whoever_may_write_anywhere_may_write_somewhere() -> None:
    def somewhere(*bindings: AclBinding) -> bool:
        authorizer = AclAuthorizer()
        authorizer.replace(bindings)
        return authorizer.is_authorized_for_any("User:alice", HERE, AclOperation.write, ResourceType.topic)

    write = AclOperation.write
    assert not somewhere(acl(operation=AclOperation.read))
    assert somewhere(acl(operation=write))
    assert not somewhere(acl(operation=write), acl(operation=write, deny=True))
    assert not somewhere(acl("orders-", write, pattern=PatternType.prefixed), acl("*", write, deny=True))
    assert not somewhere(
        acl("orders-", write, pattern=PatternType.prefixed),
        acl("orders", write, pattern=PatternType.prefixed, deny=True),
    )
    assert somewhere(
        acl("orders", write, pattern=PatternType.prefixed),
        acl("orders-", write, pattern=PatternType.prefixed, deny=True),
    )


def test_answers_for_made_up_names_do_not_pile_up() -> None:
    authorizer = AclAuthorizer()
    for number in range(ANSWERS_MAX + 10):
        authorizer.is_authorized("User:alice", HERE, AclOperation.read, ResourceType.topic, str(number))
    assert len(authorizer._answers) <= ANSWERS_MAX


def test_filters_find_by_any_by_match_and_exactly() -> None:
    bindings = [acl(), acl("ord", pattern=PatternType.prefixed), acl("*"), acl("other"), acl(kind=ResourceType.group)]

    def found(**wanted: object) -> list[AclBinding]:
        return [each for each in bindings if AclFilter(**wanted).matches(each)]  # type: ignore[arg-type]

    assert found() == bindings
    matching = found(resource_type=ResourceType.topic, resource_name="orders", pattern_type=PatternType.match)
    assert matching == bindings[:3]
    assert found(resource_name="orders", pattern_type=PatternType.literal) == [bindings[0], bindings[4]]
    assert found(resource_name="ord", pattern_type=PatternType.any) == [bindings[1]]
    assert found(principal="User:bob") == found(host="1.1.1.1") == found(operation=AclOperation.write) == []
    assert found(permission=PermissionType.deny) == []


@pytest.mark.parametrize(
    ("binding", "problem"),
    [
        (acl(kind=ResourceType.any), "Invalid resourceType ANY"),
        (acl(kind=ResourceType.unknown), "Invalid resourceType UNKNOWN"),
        (acl(""), "Invalid empty resource name"),
        (acl(kind=ResourceType.cluster), "kafka-cluster"),
        (acl(pattern=PatternType.match), "Invalid patternType MATCH"),
        (acl(operation=AclOperation.any), "Invalid operation ANY"),
        (acl()._replace(permission=PermissionType.any), "Invalid permissionType ANY"),
        (acl(principal="alice"), "no colon is present"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(binding: AclBinding, problem: str) -> None:
    assert problem in (binding_problem(binding) or "")


def test_what_makes_sense_is_taken() -> None:
    assert binding_problem(acl()) is None
    assert filter_problem(AclFilter()) is None


@pytest.mark.parametrize(
    "wanted",
    [
        AclFilter(resource_type=ResourceType.unknown),
        AclFilter(pattern_type=PatternType.unknown),
        AclFilter(operation=AclOperation.unknown),
        AclFilter(permission=PermissionType.unknown),
    ],
)
def test_a_filter_for_what_is_not_known_is_refused(wanted: AclFilter) -> None:
    assert "Unknown" in (filter_problem(wanted) or "")


def test_numbers_that_the_protocol_does_not_have_are_unknown() -> None:
    assert from_code(AclOperation, 99) is AclOperation.unknown
    assert from_code(ResourceType, -1) is ResourceType.unknown


def test_super_users_are_separated_by_semicolons_since_names_hold_commas() -> None:
    assert parse_principals("User:CN=a,O=b;User:c;") == {"User:CN=a,O=b", "User:c"}
    assert are_principals("")
    assert not are_principals("admin")
    assert not are_principals("User:")


def test_a_denial_is_one_line_whatever_the_client_calls_things(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kafka.authorizer.logger"):
        log_denial("User:a\nb", HERE, AclOperation.read, ResourceType.topic, "x\ny" * 1000, "fetch")
    [line] = caplog.messages
    assert "\n" not in line
    assert len(line) < 1000
    assert "is Denied operation = READ from host = 10.0.0.1 on resource = Topic:LITERAL:'x\\ny" in line
    assert line.endswith("for request = fetch")
