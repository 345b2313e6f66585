"""Splits requests with many elements into slices, between which other requests run.

Each slice is a separate request to its handler, which uses the metadata of that moment: no look-up from before a slice
is reused. The responses of the slices are joined into one. Repeated elements are answered once; if the handler must
reject repetitions, two of them are kept, in one slice.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headwater.logtier.protocol.errors import ErrorCode, KafkaError

SLICE_ELEMENTS: Final = 200
"""Elements of a slice, at about ten microseconds each."""

COSTLY_SLICE_ELEMENTS: Final = 20
"""Elements of a slice, at up to a millisecond each: a resource with all its configs."""

COMMIT_SLICE_ELEMENTS: Final = 1000
"""Elements of a slice of commits: a slice is one append, and few consumers have more partitions."""

CREATED_TOPICS_MAX: Final = 10_000
"""Topics created by one request: the response has each with all its configs, about 15 KB of memory."""

DESCRIBED_RESOURCES_MAX: Final = 20_000
"""Resources described by one request with their configs: Kafka's tools request all topics of a cluster at once."""


@dataclass(frozen=True, slots=True)
class SliceRule:
    """How to split the requests of an API and join their responses.

    Attributes:
        asked: Names of the nested arrays of the request, down to the counted elements.
        answered: Names of the nested arrays of the response, the same number.
        slice_max: Maximum number of elements of a slice.
        key: Key by which elements of the first array are equal; None: all are different.
        copies: Number of equal elements that are kept.
        elements_max: Maximum number of elements of the first array; None for the general limit of requests.
    """

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    slice_max: int = SLICE_ELEMENTS
    key: Callable[[Any], Hashable] | None = None
    copies: int = 1
    elements_max: int | None = None


def _itself(element: Any) -> Hashable:
    key: Hashable = element
    return key


def _topic(element: Any) -> Hashable:
    return (getattr(element, "topic_id", None), element.name)


def _name(element: Any) -> Hashable:
    name: Hashable = element.name
    return name


def _resource(element: Any) -> Hashable:
    return (element.resource_type, element.resource_name)


def _described_resource(element: Any) -> Hashable:
    return (*_resource(element), tuple(element.configuration_keys or ()))  # type: ignore[misc]


_BY_PARTITION: Final = (SliceRule(("topics", "partitions"), ("topics", "partitions")),)
_COMMITS: Final = (SliceRule(("topics", "partitions"), ("topics", "partitions"), COMMIT_SLICE_ELEMENTS),)
_ALTERED_CONFIGS: Final = (SliceRule(("resources",), ("responses",), COSTLY_SLICE_ELEMENTS, _resource, 2),)

SLICE_RULES: Final[Mapping[str, tuple[SliceRule, ...]]] = {
    "alter_client_quotas": (SliceRule(("entries",), ("entries",)),),
    "alter_configs": _ALTERED_CONFIGS,
    "consumer_group_describe": (SliceRule(("group_ids",), ("groups",), key=_itself),),
    "create_acls": (SliceRule(("creations",), ("results",)),),
    "create_partitions": (SliceRule(("topics",), ("results",), key=_name, copies=2),),
    "create_topics": (SliceRule(("topics",), ("topics",), key=_name, copies=2, elements_max=CREATED_TOPICS_MAX),),
    "delete_acls": (SliceRule(("filters",), ("filter_results",), COSTLY_SLICE_ELEMENTS),),
    "delete_groups": (SliceRule(("groups_names",), ("results",), key=_itself),),
    "delete_topics": (
        SliceRule(("topic_names",), ("responses",), key=_itself, copies=2),
        SliceRule(("topics",), ("responses",), key=_topic, copies=2),
    ),
    "describe_configs": (
        SliceRule(
            ("resources",),
            ("results",),
            COSTLY_SLICE_ELEMENTS,
            _described_resource,
            elements_max=DESCRIBED_RESOURCES_MAX,
        ),
    ),
    "describe_groups": (SliceRule(("groups",), ("groups",), key=_itself),),
    "describe_producers": (SliceRule(("topics", "partition_indexes"), ("topics", "partitions")),),
    "describe_transactions": (SliceRule(("transactional_ids",), ("transaction_states",), key=_itself),),
    "elect_leaders": (SliceRule(("topic_partitions", "partitions"), ("replica_election_results", "partition_result")),),
    "find_coordinator": (SliceRule(("coordinator_keys",), ("coordinators",), key=_itself),),
    "incremental_alter_configs": _ALTERED_CONFIGS,
    "list_offsets": _BY_PARTITION,
    "metadata": (SliceRule(("topics",), ("topics",), key=_topic),),
    "offset_commit": _COMMITS,
    "offset_fetch": (
        SliceRule(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions")),
        SliceRule(("topics", "partition_indexes"), ("topics", "partitions")),
    ),
    "offset_for_leader_epoch": _BY_PARTITION,
    "txn_offset_commit": _COMMITS,
}
"""Rules by API name. Other APIs have few or cheap elements."""


def slices_of(request: Any, rules: Sequence[SliceRule]) -> tuple[SliceRule, list[Any]] | None:
    """Return the rule and the slices of a long request; None for a short one.

    Raises:
        KafkaError: The request has too many elements.
    """
    for rule in rules:
        elements = getattr(request, rule.asked[0], None)
        if elements:
            break
    else:
        return None
    if len(elements) == 1 and len(rule.asked) == 1:
        return None
    if rule.key is not None and len(elements) > 1:
        if rule.elements_max is not None and len(elements) > rule.elements_max:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"{len(elements)} {rule.asked[0]} exceed the limit of {rule.elements_max} per request; split them "
                "into several requests.",
            )
        distinct = _distinct(elements, rule)
    else:
        distinct = [(element,) for element in elements]
    count = sum(_weight(element, rule.asked[1:]) for same in distinct for element in same)
    is_shorter = sum(map(len, distinct)) < len(elements)
    if count <= rule.slice_max and not is_shorter:
        return None
    return rule, [replace(request, **{rule.asked[0]: tuple(cut)}) for cut in _cut(distinct, rule)]


def join_answers(rule: SliceRule, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join the responses of the slices; other fields are those of the last one, except for the first error."""
    name = rule.answered[0]
    elements = [element for answer in answers for element in answer[name]]
    return _with_first_error({**answers[-1], name: _joined(elements, rule.answered[1:])}, answers)


def _with_first_error(whole: dict[str, Any], parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Report an error of a part for the whole: otherwise its missing elements would look as if they did not exist.

    >>> _with_first_error({"error_code": 0}, [{"error_code": 14}, {"error_code": 0}]), _with_first_error({}, [{}])
    ({'error_code': 14}, {})
    """
    for part in parts:
        if part.get(_ERROR):
            whole |= {each: part[each] for each in (_ERROR, _ERROR_MESSAGE) if each in part}
            break
    return whole


def _distinct(elements: Sequence[Any], rule: SliceRule) -> list[Sequence[Any]]:
    """Group equal elements, with at most the kept number of each."""
    assert rule.key is not None
    found: dict[Hashable, list[Any]] = {}
    for element in elements:
        same = found.setdefault(rule.key(element), [])
        if len(same) < rule.copies:
            same.append(element)
    return list(found.values())


def _weight(element: Any, path: Sequence[str]) -> int:
    """Return the number of elements at the end of the path, 1 for none."""
    if not path:
        return 1
    inner = getattr(element, path[0])
    if not inner:
        return 1
    return len(inner) if len(path) == 1 else sum(_weight(each, path[1:]) for each in inner)


def _cut(distinct: Sequence[Sequence[Any]], rule: SliceRule) -> Iterator[list[Any]]:
    """Yield slices of the first array: equal elements are in one slice, a large element in several."""
    current: list[Any] = []
    left = rule.slice_max
    for same in distinct:
        pieces = [piece for element in same for piece in _pieces(element, rule.asked[1:], rule.slice_max)]
        # Pieces of one element may be in different slices; equal elements, which are never split, may not.
        for together in [pieces] if len(same) > 1 else [[piece] for piece in pieces]:
            weight = sum(_weight(piece, rule.asked[1:]) for piece in together)
            if current and weight > left:
                yield current
                current, left = [], rule.slice_max
            current += together
            left -= weight
    if current:
        yield current


def _pieces(element: Any, path: Sequence[str], slice_max: int) -> list[Any]:
    """Split an element with more inner elements than a slice into several elements with parts of them."""
    if not path or _weight(element, path) <= slice_max:
        return [element]
    parts: list[list[Any]] = []
    left = 0
    for inner in getattr(element, path[0]):
        for piece in _pieces(inner, path[1:], slice_max):
            weight = _weight(piece, path[1:])
            if weight > left:
                parts.append([])
                left = slice_max
            parts[-1].append(piece)
            left -= weight
    return [replace(element, **{path[0]: tuple(part)}) for part in parts]


def _joined(elements: list[dict[str, Any]], path: Sequence[str]) -> list[dict[str, Any]]:
    """Join adjacent pieces of one element."""
    if not path:
        return elements
    joined: list[dict[str, Any]] = []
    for element in elements:
        if joined and _label(joined[-1]) == _label(element):
            # In a separate list, so that the parts are not copied repeatedly.
            together = joined[-1][path[0]]
            together += element[path[0]]
            joined[-1] = _with_first_error({**element, path[0]: together}, (joined[-1], element))
        else:
            joined.append({**element, path[0]: list(element[path[0]])})
    if len(path) == 1:
        return joined
    return [{**element, path[0]: _joined(list(element[path[0]]), path[1:])} for element in joined]


_ERROR: Final = "error_code"
_ERROR_MESSAGE: Final = "error_message"
_LABELS: Final = ("name", "topic", "topic_id", "group_id")


def _label(element: dict[str, Any]) -> Hashable:
    return tuple(element.get(label) for label in _LABELS)
