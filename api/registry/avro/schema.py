"""An Avro schema in the registry."""

from __future__ import annotations

from dataclasses import dataclass, field

from headwater.api.registry.model import SchemaType
from headwater.api.registry.parsed import Dependencies, ParsedSchema
from headwater.pipelines.schemas.avro import parser, printer, resolution
from headwater.pipelines.schemas.avro.types import AvroType, NamedType
from headwater.pipelines.schemas.errors import InvalidSchemaError, Problem


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A parsed Avro schema; `names` maps full names to named types, those of the references included."""

    root: AvroType
    names: dict[str, NamedType]
    used: frozenset[str]
    canonical: str
    schema_type: SchemaType = field(default=SchemaType.AVRO, init=False)

    @classmethod
    def parse(cls, text: str, dependencies: Dependencies, *, new: bool) -> AvroSchema:
        """Parse a schema; types of the references are known by their full names.

        Raises:
            InvalidSchemaError: the text is not an Avro schema, or names a type that no reference defines.
        """
        used: dict[str, NamedType] = {}
        for dependency in dependencies:
            if not isinstance(dependency.parsed, AvroSchema):
                raise InvalidSchemaError(f"the reference {dependency.name!r} is no Avro schema")
            used.update(dependency.parsed.names)
        root, names = parser.parse(text, used, check_defaults=new)
        return cls(root, names, frozenset(used), printer.canonical(root, used))

    def normalized(self) -> str:
        """Return the text with full names and ordered attributes."""
        return printer.normalized(self.root, self.used)

    def formatted(self, form: str) -> str:
        """Return the text in a form; `resolved` inlines the types of the references."""
        if form != "resolved":
            return self.canonical
        try:
            return printer.canonical(self.root, ())
        except RecursionError:
            raise InvalidSchemaError("its references use each other too deeply to be written out") from None

    def problems_reading(self, written: ParsedSchema) -> list[Problem]:
        """Return why a reader with this schema cannot read data written with `written`."""
        assert isinstance(written, AvroSchema)
        return resolution.problems(self.root, written.root)
