"""Programs that write columns as values of a schema. Pure. `encode_kernel` defines the programs' numbers."""

from __future__ import annotations

from headwater.pipelines.formats.avro import encode_kernel as op
from headwater.pipelines.formats.avro.columns import Node
from headwater.pipelines.schemas.avro.types import EnumType, FixedType


def program(root: Node) -> list[int]:
    """Return the program of a schema."""
    code: list[int] = []
    _write(code, root)
    code.append(op.END)
    return code


def _write(code: list[int], node: Node) -> None:
    place = None
    if node.nullable:
        code += [op.NULLABLE, node.slot, node.null_branch, node.value_branch, 0]
        place = len(code) - 1
    else:
        code += [op.REQUIRED, node.slot]
        if node.value_branch >= 0:
            code += [op.BRANCH, node.value_branch]
    _value(code, node)
    if place is not None:
        code[place] = len(code)


def _value(code: list[int], node: Node) -> None:
    if isinstance(node.type, EnumType):
        code += [op.ENUM, node.slot]
        return
    match node.sql:
        case "STRUCT":
            for child in node.children:
                _write(code, child)
        case "ARRAY" | "MAP":
            code += [op.LIST, node.slot, 0]
            place = len(code) - 1
            for child in node.children:
                _write(code, child)
            code.append(op.NEXT)
            code[place] = len(code)
        case "DECIMAL":
            code += [op.DECIMAL, node.slot, node.type.size if isinstance(node.type, FixedType) else -1]
        case "BINARY" if isinstance(node.type, FixedType):
            code += [op.FIXED, node.slot, node.type.size]
        case "STRING" | "BINARY":
            code += [op.BYTES, node.slot]
        case "BOOLEAN":
            code += [op.BOOLEAN, node.slot]
        case "FLOAT":
            code += [op.FLOAT, node.slot]
        case "DOUBLE":
            code += [op.DOUBLE, node.slot]
        case _:
            code += [op.NUMBER, node.slot]
