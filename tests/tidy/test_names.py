"""One name, one thing: two public classes of one name make every search, every import and every talk ask which."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

CODE = {"api", "logtier", "pipelines", "platform"}
#: Names that more than one class still has, with how many and why. The list may only shrink.
SHARED = {
    # Terms of Kafka, Spark or Confluent, each as its side of the wire or its own API has it.
    "AuthenticationError": (2, "the broker refuses it, the client raises it; neither side imports the other"),
    "ConfigChange": (2, "of the REST API's requests and of the controller's commands"),
    "MetricsEndpoint": (2, "Prometheus' of the broker and of a pipeline's run, in processes of their own"),
    "Metadata": (2, "of Confluent's REST resources, and what a state topic's log asks of the cluster's"),
    "ProducedPartition": (2, "of a Produce response: read by the client, written by the broker"),
    "RegistryError": (2, "the registry answers it, its client raises it"),
    "Subscription": (2, "of a group's member (protocol type consumer), and Spark's options subscribe and assign"),
    "TransactionConfig": (2, "the client's properties and the broker's configs of transactions"),
    # Terms of a grammar, a graph or a state machine that a module has to itself.
    "Batch": (2, "of frames on their way to Python, and a micro-batch to the fence"),
    "BatchWriter": (2, "of Spark's writer interface, and of an engine's micro-batch"),
    "Change": (2, "of a consumer group's records, and of a deployed pipeline"),
    "Check": (2, "the metadata store's condition of a write, and what `doctor` looks at"),
    "Connection": (2, "what handlers know of a client's, and HTTP's of the registry client"),
    "Document": (2, "of JSON Schema and of YAML"),
    "Encode": (2, "tasks of Spark: of framed values, of record batches"),
    "Graph": (2, "of JSON Schemas, and of a drawing"),
    "Kind": (2, "of JSON Schemas, and of tokens of .proto files"),
    "Lag": (2, "of a query, and as the status record has it"),
    "Model": (2, "JSON Schema's content model, and pydantic's base of the pipeline file"),
    "Node": (5, "of trees: metadata, JSON Schema, drawing, Avro's and Protobuf's columns"),
    "Place": (2, "for a folder of a log, and in a pipeline file"),
    "Plan": (2, "of the controller for topics, and of a pipeline's run"),
    "Problem": (2, "of a pipeline file, and of a schema"),
    "Reader": (3, "of old data, of framed values, of Protobuf's messages"),
    "Request": (2, "of the wire client, and of a preview"),
    "Restart": (2, "a stage's setting in the pipeline file, and the supervisor's decision"),
    "State": (2, "of a stage, and of a change rule"),
    "Step": (2, "of a consumer group, and of the exactly-once fence"),
    "UnreadableError": (2, "of a device, and of an Avro value"),
    "Verdict": (2, "of an ACL, and on a run's transaction"),
}


def public_classes(sources: Sequence[Path], root: Path) -> dict[str, list[str]]:
    """The modules of every public class at the top of a module of the product."""
    found = defaultdict(list)
    for path in sources:
        if path.suffix == ".py" and path.parts[0] in CODE:
            for statement in ast.parse((root / path).read_bytes()).body:
                if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                    found[statement.name].append(str(path))
    assert len(found) > 500, "the walk lost the tree"
    return found


def test_no_two_public_classes_have_one_name(sources: Sequence[Path], root: Path) -> None:
    shared = {name: paths for name, paths in public_classes(sources, root).items() if len(paths) > 1}
    assert {name: paths for name, paths in shared.items() if len(paths) > SHARED.get(name, (1, ""))[0]} == {}
    assert sorted(SHARED.keys() - shared.keys()) == [], "what is shared no more leaves the list"
    assert {name for name, (number, _) in SHARED.items() if name in shared and number > len(shared[name])} == set()
