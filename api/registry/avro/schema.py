"""An Avro schema as the registry sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headwater.api.registry.model import SchemaType
from headwater.api.registry.parsed import Dependencies, ParsedSchema
from headwater.pipelines.schemas.avro import parser, printer, resolution
from headwater.pipelines.schemas.avro.types import AvroType, NamedType
from headwater.pipelines.schemas.errors import InvalidSchemaError, Problem


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A parsed Avro schema; `names` has every named type of it and of what it uses, by full name."""

    root: AvroType
    names: dict[str, NamedType]
    used: frozenset[str]
    canonical: str
    schema_type: SchemaType = field(default=SchemaType.AVRO, init=False)

    @classmethod
    def parse(cls, text: str, dependencies: Dependencies, *, new: bool) -> AvroSchema:
        """Parse a text; what it uses is known by the names of its types.

        Raises:
            InvalidSchemaError: it is no Avro schema, or uses a type that none of its references has.
        """
        used: dict[str, NamedType] = {}
        for dependency in dependencies:
            if not isinstance(dependency.parsed, AvroSchema):
                raise InvalidSchemaError(f"the reference {dependency.name!r} is no Avro schema")
            used.update(dependency.parsed.names)
        root, names = parser.parse(text, used, check_defaults=new)
        return cls(root, names, frozenset(used), printer.canonical(root, used))

    def normalized(self) -> str:
        """Return the text with full names, and with attributes in order."""
        return printer.normalized(self.root, self.used)

    def formatted(self, form: str) -> str:
        """Return the text; `resolved` writes out what it only refers to."""
        if form != "resolved":
            return self.canonical
        try:
            return printer.canonical(self.root, ())
        except RecursionError:
            raise InvalidSchemaError("its references use each other too deeply to be written out") from None

    def problems_reading(self, written: ParsedSchema) -> list[Problem]:
        """Return why this schema does not understand data of the other one."""
        assert isinstance(written, AvroSchema)
        return resolution.problems(self.root, written.root)
