"""Columns of the values and keys of declared topics: from schema files, a registry, or the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headwater.pipelines import columns as names
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import INFERRED, Loaded, SecretMissingError
from headwater.pipelines.definition.graph import writers
from headwater.pipelines.definition.topics import FRAMED, FROM_REGISTRY, Event, Topic
from headwater.pipelines.definition.yaml_source import Loc
from headwater.pipelines.errors import PipelineError, Problem
from headwater.pipelines.formats import ValueColumns, json_schema
from headwater.pipelines.formats.registry_client import (
    Connection,
    NotFoundError,
    RegisteredSchema,
    RegistryError,
    client_of,
)
from headwater.pipelines.formats.topic_encoding import SCHEMA_TYPES, Encoding, RegisteredPart
from headwater.pipelines.sources import topic as topic_source
from headwater.pipelines.sources.known_columns import KnownColumns
from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


INFERENCE_RECORDS_MAX = 100_000  # records of a topic that inference reads
KEY = "key"  # the column of keys in a format with fields


class _Mistake(Exception):  # noqa: N818 - it becomes a Problem
    """A problem of a schema, with its path in the file."""

    def __init__(self, loc: Loc, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.loc = loc
        self.hint = hint


@dataclass(frozen=True, slots=True)
class SchemaColumns:
    """The columns of a schema; and its registered form, for formats with a registry."""

    columns: ValueColumns
    part: RegisteredPart | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """Columns and encodings of declared topics.

    Attributes:
        columns: Known columns, including their values and keys.
        encodings: Encodings by topic.
        problems: Problems of their schemas.
    """

    columns: KnownColumns
    encodings: Mapping[str, Encoding]
    problems: tuple[Problem, ...]


def find_declared(
    spark: SparkSession, loaded: Loaded, known: KnownColumns, bootstrap_servers: Brokers | None
) -> Declared:
    """Determine the columns of every topic that declares their source.

    Without a broker's address no other system is contacted: the columns of topics with `schema: inferred` or `registry`
    remain unknown.
    """
    problems: list[Problem] = []
    encodings: dict[str, Encoding] = {}
    values, events, keys = dict(known.values), dict(known.events), dict(known.keys)
    for name, topic in loaded.pipeline.topics.items():
        finder = _Finder(spark, loaded, bootstrap_servers, name, topic)
        try:
            found = finder.values(known)
            if found.values is not None:
                values[name] = found.values
            if found.events:
                events[name] = found.events
            encodings[name] = found.encoding
            taken = [*(schema.fieldNames() if (schema := _schema(values.get(name))) is not None else []), *found.events]
            key = finder.keys(taken, found.encoding)
            if key.columns is not None:
                keys[name] = key.columns
            encodings[name] = key.encoding
        except _Mistake as mistake:
            problems.append(loaded.problem(mistake.loc, str(mistake), mistake.hint))
    topics = loaded.pipeline.topics.values()
    if bootstrap_servers is not None and any("avro" in (topic.value, topic.key) for topic in topics):
        from headwater.pipelines.formats.avro import warm

        warm()
    return Declared(replace(known, values=values, events=events, keys=keys), encodings, tuple(problems))


def declared_topic_columns(spark: SparkSession, loaded: Loaded, topic: str, brokers: Brokers) -> KnownColumns:
    """The columns of a declared topic, found for it alone: another topic's mistake is not its own.

    Raises PipelineError.
    """
    own = {name: declared for name, declared in loaded.pipeline.topics.items() if name == topic}
    alone = replace(loaded, pipeline=loaded.pipeline.model_copy(update={"topics": own}))
    found = find_declared(spark, alone, KnownColumns(own), brokers)
    if found.problems:
        raise PipelineError(found.problems)
    return found.columns


def _schema(values: ValueColumns | None) -> StructType | None:
    return None if values is None else values.schema


def derive(loaded: Loaded, known: KnownColumns, topic: str, rows: DataFrame) -> SchemaColumns | None:
    """The columns that a stage writes, for a topic without a declared schema; otherwise None.

    Raises ValueError for column types that the topic's format does not support.
    """
    from pyspark.sql.types import StructType

    fields = [field for field in rows.schema.fields if field.name not in names.RESERVED]
    value_format = known.value_format(topic)
    if topic in known.values or topic in known.events or value_format not in ("json", "avro", "json_schema"):
        return None
    declared = known.topics.get(topic)
    if value_format == "json":
        # Readers of the topic use its declared schema; otherwise the columns that this stage writes.
        options = _options(declared) if declared is not None else {}
        return SchemaColumns(ValueColumns(StructType(fields), options=options))
    assert declared is not None, "a topic that nobody declared is json"
    connection = _connection(loaded)
    text = _derived_schema(value_format, StructType(fields), topic)
    schema = RegisteredSchema(SCHEMA_TYPES[value_format], text)
    values = _framed_columns(value_format, schema, connection, topic, None, declared, "value")
    subject = declared.subject or f"{topic}-value"
    return SchemaColumns(values, _part(loaded, value_format, schema, topic, None, "value", subject, connection))


def derive_key(loaded: Loaded, known: KnownColumns, topic: str, kind: DataType) -> SchemaColumns | None:
    """The same for keys without a declared schema: the columns of the type that a stage writes. Raises ValueError."""
    declared = known.topics.get(topic)
    if declared is None or declared.key not in FRAMED:
        return None
    if declared.key == "protobuf":
        raise ValueError(f"the keys of '{topic}' are protobuf: name their schema by key_schema")
    text = _derived_schema(declared.key, kind, f"{topic}_key")
    connection = _connection(loaded)
    schema = RegisteredSchema(SCHEMA_TYPES[declared.key], text)
    keys = known.keys.get(topic) or _framed_columns(declared.key, schema, connection, topic, None, declared, "key")
    return SchemaColumns(keys, _part(loaded, declared.key, schema, topic, None, "key", f"{topic}-key", connection))


def registered_columns(connection: Connection, schema: RegisteredSchema, topic: str) -> tuple[Topic, ValueColumns]:
    """The declaration and the columns of a topic that no pipeline declares, by its schema in a registry.

    Raises ValueError for a schema that has no columns.
    """
    value_format = next(name for name, kind in SCHEMA_TYPES.items() if kind == schema.schema_type)
    declared = Topic.model_validate({"value": value_format, "schema": FROM_REGISTRY})
    return declared, _framed_columns(value_format, schema, connection, topic, None, declared, "value")


def registered_format(loaded: Loaded, topic: str) -> str:
    """The format of a topic's values by the type of its subject's latest schema in the pipeline's registry.

    Raises ValueError if the pipeline has no usable registry, NotFoundError for a subject that it lacks, RegistryError.
    """
    schema = client_of(_connection(loaded, is_asked=True)).latest(f"{topic}-value")
    found = next((name for name, kind in SCHEMA_TYPES.items() if kind == schema.schema_type), None)
    if found is None:
        raise RegistryError(
            f"the subject '{topic}-value' has a schema of the type {schema.schema_type}, which is not read"
        )
    return found


def _derived_schema(value_format: str, kind: DataType, name: str) -> str:
    if value_format == "json_schema":
        from headwater.pipelines.formats.json_schema_writing import schema_for

        return schema_for(kind, name)
    from pyspark.sql.pandas.types import to_arrow_type

    from headwater.pipelines.formats.avro.encoder import schema_for as avro_schema_for

    return avro_schema_for(to_arrow_type(kind, timezone="UTC"), name)


def _connection(loaded: Loaded, *, is_asked: bool = False) -> Connection:
    """Connection to the pipeline's registry. Raises ValueError; for a missing secret only if requests will follow."""
    own = loaded.pipeline.registry
    if own is None:
        raise ValueError("the pipeline has no registry: add `registry: {url: …}`")
    ca = None
    if own.ca is not None:
        try:
            with open(loaded.path(own.ca), encoding="utf-8") as file:
                ca = file.read()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ValueError(f"cannot read the registry's ca {loaded.path(own.ca)}: {why}") from None
    try:
        return Connection.of(
            own.url.reveal(),
            username=own.username.reveal() if own.username else None,
            password=own.password.reveal() if own.password else None,
            token=own.token.reveal() if own.token else None,
            ca=ca,
        )
    except SecretMissingError as error:
        if is_asked:
            raise ValueError(str(error)) from None
        return Connection(())  # a run checks the secrets first; this is a test


def _part(
    loaded: Loaded,
    value_format: str,
    schema: RegisteredSchema,
    topic: str,
    message: str | None,
    part: str,
    subject: str,
    connection: Connection,
) -> RegisteredPart:
    from headwater.pipelines.formats.framed_tasks import Writer

    assert loaded.pipeline.registry is not None, "there is a connection to it"
    writer = Writer(value_format, schema, topic, message, part)
    known = schema.id if schema.id >= 0 else None
    return RegisteredPart(writer, subject, connection, loaded.pipeline.registry.auto_register, known)


def _framed_columns(
    value_format: str,
    schema: RegisteredSchema,
    connection: Connection,
    topic: str,
    message: str | None,
    declared: Topic,
    part: str,
) -> ValueColumns:
    """The columns of framed values. Raises ValueError."""
    if value_format == "json_schema":
        parsed = json_schema.parse(schema.text)
        return ValueColumns(_struct(parsed.ddl), parsed.required, _options(declared))
    from headwater.pipelines.formats import framed
    from headwater.pipelines.formats.framed_tasks import Reader

    fails = declared.incompatible == "fail"
    reader = Reader(value_format, schema, connection, topic, message, part, fails)
    found = framed.value_columns(reader)
    for name in found.fieldNames():
        if name in names.RESERVED:
            raise ValueError(f"the name {name} is reserved for the record's origin")
    return ValueColumns(found, reader=reader)


def _struct(ddl: str) -> StructType:
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


def _options(declared: Topic) -> dict[str, str]:
    return {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in declared.options.items()}


@dataclass(frozen=True, slots=True)
class _Values:
    """A topic's values: their columns, the columns of its event types, their encoding."""

    encoding: Encoding
    values: ValueColumns | None = None
    events: Mapping[str, ValueColumns] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Keys:
    """A topic's keys; `columns` are set for keys with fields."""

    encoding: Encoding
    columns: ValueColumns | None = None


class _Finder:
    """Determines the columns and encodings of one topic's values and keys."""

    def __init__(self, spark: SparkSession, loaded: Loaded, servers: Brokers | None, name: str, topic: Topic) -> None:
        self._spark = spark
        self._loaded = loaded
        self._servers = servers
        self._name = name
        self._topic = topic
        self._loc: Loc = ("topics", name)

    def values(self, known: KnownColumns) -> _Values:
        """The topic's values. Raises _Mistake."""
        topic, name = self._topic, self._name
        if topic.events:
            events = dict(known.events.get(name, {}))
            for event, declared in topic.events.items():
                loc = (*self._loc, "events", event)
                subject = declared.subject or event
                found = self._declared((*loc, "schema"), (*loc, "subject"), declared, subject)
                if found is not None:
                    events[event] = found.columns
            return _Values(self._encoding(known.values.get(name)), events=events)
        if topic.schema_source == INFERRED:
            values = self._inferred() if self._servers is not None else None
            return _Values(self._encoding(values or known.values.get(name)), values)
        loc = self._loc
        found = self._declared((*loc, "schema"), (*loc, "subject"), topic, topic.subject or f"{name}-value")
        if found is None:
            return _Values(self._encoding(known.values.get(name)))
        return _Values(replace(self._encoding(found.columns), value_part=found.part), found.columns)

    def _encoding(self, wanted: ValueColumns | None) -> Encoding:
        return Encoding(self._name, self._topic.value, wanted or ValueColumns(), key_format=self._topic.key)

    def _declared(self, loc: Loc, subject_loc: Loc, declared: Topic | Event, subject: str) -> SchemaColumns | None:
        """The columns of values, or of one event type. None if only a writing stage determines them."""
        topic = self._topic
        if topic.value not in FRAMED:
            text = self._text(loc, declared.schema_file)
            return None if text is None else SchemaColumns(self._of_json_schema(loc, text))
        is_written = bool(writers(self._loaded.pipeline, self._name))
        source = declared.schema_source
        if source is None and is_written and topic.value != "protobuf":
            return None  # the writing stage determines the columns
        if source in (None, FROM_REGISTRY) and self._servers is None:
            return None
        text = self._text(loc, declared.schema_file)
        schema = self._latest(subject_loc, subject) if text is None else RegisteredSchema(
            SCHEMA_TYPES[topic.value], text
        )  # fmt: skip
        connection = self._connection()
        try:
            values = _framed_columns(
                topic.value, schema, connection, self._name, declared.message, topic, "value"
            )  # fmt: skip
        except ValueError as error:
            where = f"the registry's schema of {subject}" if text is None else f"the schema {declared.schema_file}"
            raise _Mistake(loc, f"{where} cannot be used: {error}") from None
        part = None
        if isinstance(declared, Topic):
            part = _part(self._loaded, topic.value, schema, self._name, declared.message, "value", subject, connection)
        return SchemaColumns(values, part)

    def keys(self, taken: Sequence[str], encoding: Encoding) -> _Keys:
        """The topic's keys; `taken` are the names of the values' columns. Raises _Mistake."""
        topic, name = self._topic, self._name
        loc = (*self._loc, "key_schema")
        if topic.key is None or topic.key in ("raw", "string"):
            return _Keys(encoding)
        source = topic.key_schema
        text = self._text(loc, None if source in (None, FROM_REGISTRY) else source)
        if topic.key == "json":
            if text is None:
                return _Keys(encoding)
            columns = self._of_json_schema(loc, text)
            self._check_key_name(loc, taken)
            return _Keys(encoding, columns)
        is_written = bool(writers(self._loaded.pipeline, name))
        if text is None and (self._servers is None or (source is None and is_written and topic.key != "protobuf")):
            return _Keys(encoding)
        subject = f"{name}-key"
        schema = self._latest(loc, subject) if text is None else RegisteredSchema(SCHEMA_TYPES[topic.key], text)
        connection = self._connection()
        try:
            columns = _framed_columns(topic.key, schema, connection, name, None, topic, "key")
        except ValueError as error:
            raise _Mistake(loc, f"the schema of the keys cannot be used: {error}") from None
        self._check_key_name(loc, taken)
        part = _part(self._loaded, topic.key, schema, name, None, "key", subject, connection)
        return _Keys(replace(encoding, key_part=part), columns)

    def _check_key_name(self, loc: Loc, taken: Sequence[str]) -> None:
        if KEY in [name.lower() for name in taken]:
            what = f"the values of '{self._name}' have a field named key, which is the column of its keys, too"
            raise _Mistake(loc, what, "leave key_schema out, and read the key as _key")

    def _text(self, loc: Loc, file_name: str | None) -> str | None:
        """The text of a schema file. None without a file."""
        if file_name is None:
            return None
        path = self._loaded.path(file_name)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(json_schema.SCHEMA_BYTES_MAX + 1)
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise _Mistake(loc, f"cannot read the schema {path}: {why}") from None
        if len(text) > json_schema.SCHEMA_BYTES_MAX:
            raise _Mistake(loc, f"the schema {path} is larger than {json_schema.SCHEMA_BYTES_MAX} bytes")
        return text

    def _of_json_schema(self, loc: Loc, text: str) -> ValueColumns:
        try:
            parsed = json_schema.parse(text)
        except ValueError as error:
            raise _Mistake(loc, f"the schema cannot be used: {error}") from None
        return ValueColumns(_struct(parsed.ddl), parsed.required, _options(self._topic))

    def _connection(self) -> Connection:
        try:
            return _connection(self._loaded, is_asked=self._servers is not None)
        except ValueError as error:
            raise _Mistake(("registry",), str(error)) from None

    def _latest(self, loc: Loc, subject: str) -> RegisteredSchema:
        """The latest version of a subject in the registry."""
        try:
            found = client_of(self._connection()).latest(subject)
        except NotFoundError as error:
            hint = "name its subject, or a schema file; an event's subject is its name if it says no other"
            raise _Mistake(loc, str(error), hint) from None
        except RegistryError as error:
            raise _Mistake(("registry",), str(error)) from None
        wanted = SCHEMA_TYPES[self._topic.key if subject == f"{self._name}-key" else self._topic.value]  # type: ignore[index]
        if found.schema_type != wanted:
            raise _Mistake(loc, f"the registry's schema of {subject} is {found.schema_type}, not {wanted}")
        return found

    def _inferred(self) -> ValueColumns:
        """The fields of a topic's JSON values, as Spark infers them from the existing records."""
        from pyspark.errors import PySparkException
        from pyspark.sql import functions

        spark, loc = self._spark, (*self._loc, "schema")
        assert self._servers is not None
        try:
            records = topic_source.batch(spark, self._servers, self._name).where(functions.col("value").isNotNull())
            texts = records.limit(INFERENCE_RECORDS_MAX).select(functions.col("value").cast("string").alias("value"))
            schema = jvm.json_columns(spark, texts)
        except PySparkException as error:
            from headwater.pipelines.spark.spark_errors import first_line

            what = f"the columns of '{self._name}' cannot be found in its records: {first_line(error)}"
            raise _Mistake(loc, what) from None
        if not schema.fields:
            what = f"the topic '{self._name}' has no records that tell its columns"
            raise _Mistake(loc, what, "name a schema file, or write a record first")
        return ValueColumns(schema, options=_options(self._topic))
