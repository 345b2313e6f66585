"""The index of access control lists against an evaluator that looks at every binding, straight from Kafka's rules."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.security.acl_authorizer import AclAuthorizer
from headwater.logtier.security.acls import AclBinding, AclFilter, PatternType, PermissionType
from headwater.logtier.security.operations import AclOperation, ResourceType

# Few letters, so that names are often equal to or prefixes of each other.
NAMES = st.one_of(st.text("ab", min_size=1, max_size=4), st.just("*"))
PRINCIPALS = st.sampled_from(["User:a", "User:b", "User:*", "Group:a"])
HOSTS = st.sampled_from(["1.1.1.1", "2.2.2.2", "*"])
TYPES = st.sampled_from([ResourceType.topic, ResourceType.group])
OPERATIONS = st.sampled_from([each for each in AclOperation if each not in (AclOperation.unknown, AclOperation.any)])
BINDINGS = st.builds(
    AclBinding,
    TYPES,
    NAMES,
    st.sampled_from([PatternType.literal, PatternType.prefixed]),
    PRINCIPALS,
    HOSTS,
    OPERATIONS,
    st.sampled_from([PermissionType.deny, PermissionType.allow]),
)
ACTIONS = st.tuples(
    st.sampled_from(["User:a", "User:b", "User:c", "Group:a"]),
    st.sampled_from(["1.1.1.1", "2.2.2.2"]),
    OPERATIONS.filter(lambda operation: operation is not AclOperation.all),
    TYPES,
    NAMES,
)
Action = tuple[str, str, AclOperation, ResourceType, str]

IMPLIED_BY = {
    AclOperation.describe: {"read", "write", "delete", "alter"},
    AclOperation.describe_configs: {"alter_configs"},
}


def is_about(binding: AclBinding, resource_type: ResourceType, name: str) -> bool:
    if binding.resource_type != resource_type:
        return False
    if binding.pattern_type is PatternType.prefixed:
        return name.startswith(binding.resource_name)
    return binding.resource_name in (name, "*")


def naive(bindings: list[AclBinding], action: Action, *, super_users: set[str], default: bool) -> bool:
    principal, host, operation, resource_type, name = action
    if principal in super_users:
        return True
    about = [binding for binding in bindings if is_about(binding, resource_type, name)]
    if not about:
        return default
    allowed = False
    for binding in about:
        if binding.principal not in (principal, "User:*") or binding.host not in (host, "*"):
            continue
        matches = binding.operation in (operation, AclOperation.all)
        if binding.permission is PermissionType.deny and matches:
            return False
        implies = binding.operation.name in IMPLIED_BY.get(operation, set())
        if binding.permission is PermissionType.allow and (matches or implies):
            allowed = True
    return allowed


def naive_on_any(bindings: list[AclBinding], action: Action) -> bool:
    """KIP-679: an ALLOW for the operation itself that no DENY covers wholly."""
    principal, host, operation, resource_type, _ = action
    mine = [
        binding
        for binding in bindings
        if binding.resource_type == resource_type
        and binding.principal in (principal, "User:*")
        and binding.host in (host, "*")
        and binding.operation in (operation, AclOperation.all)
    ]
    denied = [binding for binding in mine if binding.permission is PermissionType.deny]
    allowed = [binding for binding in mine if binding.permission is PermissionType.allow]

    def is_everything(binding: AclBinding) -> bool:
        return binding.pattern_type is PatternType.literal and binding.resource_name == "*"

    if any(is_everything(binding) for binding in denied):
        return False
    if any(is_everything(binding) for binding in allowed):
        return True

    def is_covered(allow: AclBinding) -> bool:
        return any(
            allow.resource_name.startswith(deny.resource_name)
            if deny.pattern_type is PatternType.prefixed
            else allow.pattern_type is PatternType.literal and allow.resource_name == deny.resource_name
            for deny in denied
        )

    return any(not is_covered(binding) for binding in allowed)


@given(st.lists(BINDINGS, max_size=12), st.lists(ACTIONS, min_size=1, max_size=8), st.booleans())
def test_the_index_decides_as_a_look_at_every_binding(
    bindings: list[AclBinding], actions: list[Action], default: bool
) -> None:
    authorizer = AclAuthorizer({"User:c"}, allow_if_no_acl=default)
    authorizer.replace(bindings)
    for action in actions * 2:  # the second time from what is remembered
        expected = naive(bindings, action, super_users={"User:c"}, default=default)
        assert authorizer.is_authorized(*action) is expected


@given(st.lists(BINDINGS, max_size=12), ACTIONS)
def test_something_is_allowed_somewhere_as_a_look_at_every_binding_says(
    bindings: list[AclBinding], action: Action
) -> None:
    authorizer = AclAuthorizer()
    authorizer.replace(bindings)
    by_name = naive(bindings, (*action[:4], "hardcode"), super_users=set(), default=False)
    assert authorizer.is_authorized_for_any(*action[:4]) is (by_name or naive_on_any(bindings, action))


@given(st.lists(BINDINGS, max_size=8), st.lists(BINDINGS, max_size=8), st.lists(ACTIONS, min_size=1, max_size=6))
def test_an_answer_after_a_change_is_by_the_new_lists(
    before: list[AclBinding], after: list[AclBinding], actions: list[Action]
) -> None:
    authorizer = AclAuthorizer()
    authorizer.replace(before)
    for action in actions:
        authorizer.is_authorized(*action)
    authorizer.replace(after)
    for action in actions:
        assert authorizer.is_authorized(*action) is naive(after, action, super_users=set(), default=False)


@given(st.lists(BINDINGS, max_size=12), TYPES, NAMES.filter(lambda name: name != "*"))
def test_a_matching_filter_finds_exactly_the_bindings_that_apply_to_a_name(
    bindings: list[AclBinding], resource_type: ResourceType, name: str
) -> None:
    wanted = AclFilter(resource_type, name, PatternType.match)
    found = [binding for binding in bindings if wanted.matches(binding)]
    assert found == [binding for binding in bindings if is_about(binding, resource_type, name)]
