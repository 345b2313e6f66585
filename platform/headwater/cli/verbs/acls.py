"""`headwater acls`: access control lists, on a running broker or in the folder of a stopped one.

If the broker's authorizer admits nobody, the first rules are added in its folder, or by one of its `super.users`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headwater.cli.shell.administration import admin_client
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_options, output_option
from headwater.cli.shell.output import note, print_rows
from headwater.cli.shell.stored_metadata import stored_metadata_options, with_controller

if TYPE_CHECKING:
    from headwater.logtier.controller.controller import Controller
    from headwater.logtier.metadata.image import MetadataCache
    from headwater.logtier.security.acls import AclBinding, AclFilter

F = TypeVar("F", bound=Callable[..., Any])

OPERATIONS: Final = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster_action",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
)
CLUSTER: Final = "kafka-cluster"
_OF_PRODUCER: Final = {"topic": ("write", "create", "describe"), "transactional_id": ("write", "describe")}
_OF_CONSUMER: Final = {"topic": ("read", "describe"), "group": ("read",)}


@click.group("acls")
def app() -> None:
    """List, add and remove access control lists (ACLs)."""


def _many(*names: str, metavar: str, what: str) -> Callable[[F], F]:
    """Return an option that may be repeated."""
    return click.option(*names, multiple=True, metavar=metavar, help=f"{what}; may be repeated.")


def _resource_options(function: F) -> F:
    for decorate in (
        _many("--topic", "topics", metavar="NAME", what="Topic, or * for all topics"),
        _many("--group", "groups", metavar="NAME", what="Consumer group, or * for all groups"),
        _many("--transactional-id", "transactional_ids", metavar="ID", what="Transactional id"),
        click.option("--cluster", is_flag=True, help="The cluster."),
    )[::-1]:
        function = decorate(function)
    return function


def _rule_options(function: F) -> F:
    for decorate in (
        _many("--principal", "principals", metavar="USER", what="Principal, such as User:alice"),
        _many("--host", "hosts", metavar="ADDRESS", what="Host from which clients connect"),
        click.option(
            "--operation",
            "operations",
            multiple=True,
            type=click.Choice(OPERATIONS),
            help="Operation; may be repeated.",
        ),
        click.option("--deny", is_flag=True, help="Deny instead of allow; deny takes precedence."),
    )[::-1]:
        function = decorate(function)
    return function


_prefix_option = click.option("--prefix", is_flag=True, help="Match all names that begin with the given ones.")


@app.command()
@_resource_options
@_prefix_option
@_rule_options
@click.option("--producer", is_flag=True, help="The operations of a producer: write, create and describe its topics.")
@click.option(
    "--consumer", is_flag=True, help="The operations of a consumer: read and describe its topics, read its group."
)
@stored_metadata_options
@client_options
def add(**given: Any) -> None:
    """Add a rule for each combination of the given principals, hosts, operations and resources.

    \b
    Examples:
      headwater acls add --principal User:alice --producer --topic orders
      headwater acls add --principal User:bob --consumer --topic orders- --prefix --group billing
      headwater acls add --principal 'User:*' --operation read --topic secret --deny
    """
    bindings = _bindings(given)
    if given["stored"] is not None:

        async def create(controller: Controller, _: MetadataCache) -> list[Any]:
            return list(await controller.create_acls(bindings))

        for error in with_controller("acls add", given["stored"], create):
            if error is not None:
                raise CliError("acls add", error.message, exit_code=EXIT_FAILED)
    else:
        admin = admin_client("acls add", given["bootstrap_servers"])
        for future in admin.client.create_acls([_to_client(binding) for binding in bindings]).values():
            admin.answer("acls add", future)
    for binding in bindings:
        note(f"Added: {binding}.")


@app.command("list")
@_resource_options
@_rule_options
@stored_metadata_options
@output_option
@client_options
def list_acls(output: str, **given: Any) -> None:
    """List all rules, or those that match the given resources and principals.

    A name matches every rule that applies to it: literal rules, prefixed rules, and rules for `*`.
    """
    found = _found("acls list", given)
    rows = [
        {
            "principal": binding.principal,
            "host": binding.host,
            "permission": binding.permission.name,
            "operation": binding.operation.name,
            "resource": binding.resource_type.name,
            "pattern": binding.pattern_type.name,
            "name": binding.resource_name,
        }
        for binding in sorted(found, key=lambda each: (each.resource_type, each.resource_name, each))
    ]
    columns = ("principal", "host", "permission", "operation", "resource", "pattern", "name")
    print_rows(rows, {column: column.upper() for column in columns}, output)


@app.command()
@_resource_options
@_prefix_option
@_rule_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@stored_metadata_options
@client_options
def remove(yes: bool, **given: Any) -> None:
    """Remove the rules of exactly the given resources, principals, hosts and operations, after confirmation."""
    import sys

    verb = "acls remove"
    filters = _filters(given, exact=True)
    found = _found(verb, given, exact=True)
    if not found:
        note("No rule matches.")
        return
    for binding in found:
        note(f"Will be removed: {binding}.")
    if not yes:
        if not sys.stdin.isatty():
            raise CliError(verb, f"would remove {len(found)} rules", "give --yes to confirm")
        click.confirm(f"Remove {len(found)} rules?", abort=True, err=True)
    if given["stored"] is not None:

        async def delete(controller: Controller, _: MetadataCache) -> None:
            await controller.delete_acls(filters)

        with_controller(verb, given["stored"], delete)
    else:
        admin = admin_client(verb, given["bootstrap_servers"])
        for future in admin.client.delete_acls([_to_client_filter(each) for each in filters]).values():
            admin.answer(verb, future)
    note(f"Removed {len(found)} rules.")


def _resources(given: dict[str, Any]) -> list[tuple[str, str]]:
    names = [("topic", name) for name in given["topics"]]
    names += [("group", name) for name in given["groups"]]
    names += [("transactional_id", name) for name in given["transactional_ids"]]
    return names + ([("cluster", CLUSTER)] if given["cluster"] else [])


def _bindings(given: dict[str, Any]) -> list[AclBinding]:
    from headwater.logtier.security.acls import AclBinding, PatternType, PermissionType, binding_problem
    from headwater.logtier.security.operations import AclOperation, ResourceType

    resources = _resources(given)
    if not resources or not given["principals"]:
        raise CliError("acls add", "no resource or no principal is given", "give --topic (or another) and --principal")
    bindings: dict[AclBinding, None] = {}
    for kind, name in resources:
        operations = list(given["operations"])
        if given["producer"]:
            operations += _OF_PRODUCER.get(kind, ())
        if given["consumer"]:
            operations += _OF_CONSUMER.get(kind, ())
        if not operations:
            hint = "give --operation, --producer or --consumer"
            raise CliError("acls add", f"no operation is given for {kind} {name}", hint)
        pattern = PatternType.prefixed if given["prefix"] and kind != "cluster" else PatternType.literal
        for principal in given["principals"]:
            for host in given["hosts"] or ("*",):
                for operation in operations:
                    binding = AclBinding(
                        ResourceType[kind],
                        name,
                        pattern,
                        principal,
                        host,
                        AclOperation[operation],
                        PermissionType.deny if given["deny"] else PermissionType.allow,
                    )
                    problem = binding_problem(binding)
                    if problem is not None:
                        raise CliError("acls add", problem)
                    bindings[binding] = None
    return list(bindings)


def _filters(given: dict[str, Any], *, exact: bool) -> list[AclFilter]:
    from headwater.logtier.security.acls import AclFilter, PatternType, PermissionType
    from headwater.logtier.security.operations import AclOperation, ResourceType

    if exact and not _resources(given) and not given["principals"]:
        hint = "give --topic (or another), --principal or both"
        raise CliError("acls remove", "neither a resource nor a principal is given", hint)
    named = PatternType.match
    if exact:
        named = PatternType.prefixed if given["prefix"] else PatternType.literal
    resources: Iterable[tuple[ResourceType, str | None, PatternType]] = [
        (ResourceType[kind], name, PatternType.literal if kind == "cluster" else named)
        for kind, name in _resources(given)
    ] or [(ResourceType.any, None, PatternType.any)]
    return [
        AclFilter(
            kind,
            name,
            pattern,
            principal,
            host,
            AclOperation[operation],
            PermissionType.deny if given["deny"] else PermissionType.any,
        )
        for kind, name, pattern in resources
        for principal in given["principals"] or (None,)
        for host in given["hosts"] or (None,)
        for operation in given["operations"] or ("any",)
    ]


def _found(verb: str, given: dict[str, Any], *, exact: bool = False) -> list[AclBinding]:
    filters = _filters(given, exact=exact)
    found: dict[AclBinding, None] = {}
    if given["stored"] is not None:

        async def read(_: Controller, metadata: MetadataCache) -> list[AclBinding]:
            return list(metadata.image.acls.values())

        for binding in with_controller(verb, given["stored"], read):
            if any(wanted.matches(binding) for wanted in filters):
                found[binding] = None
        return list(found)
    admin = admin_client(verb, given["bootstrap_servers"])
    for wanted in filters:
        for each in admin.answer(verb, admin.client.describe_acls(_to_client_filter(wanted))):
            found[_from_client(each)] = None
    return list(found)


def _to_client(binding: AclBinding) -> Any:
    from confluent_kafka.admin import AclBinding as ClientBinding

    return ClientBinding(*_client_fields(binding))


def _to_client_filter(wanted: AclFilter) -> Any:
    from confluent_kafka.admin import AclBindingFilter

    return AclBindingFilter(*_client_fields(wanted))


def _client_fields(acl: AclBinding | AclFilter) -> tuple[Any, ...]:
    from confluent_kafka.admin import AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    return (
        ResourceType(int(acl.resource_type)),
        acl.resource_name,
        ResourcePatternType(int(acl.pattern_type)),
        acl.principal,
        acl.host,
        AclOperation(int(acl.operation)),
        AclPermissionType(int(acl.permission)),
    )


def _from_client(found: Any) -> AclBinding:
    from headwater.logtier.security.acls import AclBinding, PatternType, PermissionType
    from headwater.logtier.security.operations import AclOperation, ResourceType

    return AclBinding(
        ResourceType(found.restype.value),
        found.name,
        PatternType(found.resource_pattern_type.value),
        found.principal,
        found.host,
        AclOperation(found.operation.value),
        PermissionType(found.permission_type.value),
    )
