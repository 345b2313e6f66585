"""Decisions of the controller on client quotas: (image, command) to store operations or an error. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headwater.logtier.config.quotas import ClientQuota, QuotaEntity, entity_problem, value_problem
from headwater.logtier.controller.state import Plan
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.quota_nodes import encode_quota, quota_path
from headwater.logtier.metadata.store import Create, Delete, Operation, SetData
from headwater.logtier.protocol.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """Changes of one entity's quotas, in the order of the request; the value None removes a quota."""

    entity: QuotaEntity
    changes: Sequence[tuple[str, float | None]]


def plan_alter_quotas(image: MetadataImage, alterations: Sequence[QuotaAlteration]) -> Plan[KafkaError | None]:
    """Change quotas; the changes of an entity are accepted or rejected together, once per request."""
    plan: Plan[KafkaError | None] = Plan()
    current = {quota.entity: quota.values for quota in image.client_quotas.values()}
    seen: set[QuotaEntity] = set()
    for alteration in alterations:
        entity = alteration.entity
        try:
            if entity in seen:
                raise KafkaError(ErrorCode.invalid_request, f"Ignoring duplicate entity {dict(entity)}")
            seen.add(entity)
            operations = _alter(entity, alteration, current.get(entity, {}))
        except KafkaError as error:
            plan.results.append(error)
        else:
            plan.results.append(None)
            plan.operations.extend(operations)
    return plan


def _alter(entity: QuotaEntity, alteration: QuotaAlteration, current: Mapping[str, float]) -> list[Operation]:
    keys = [key for key, _ in alteration.changes]
    for key in keys:
        if keys.count(key) > 1:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Duplicate quota key {key[:100]} not updating quota for this entity {dict(entity)}",
            )
    problem = entity_problem(entity)
    altered = dict(current)
    for key, value in alteration.changes:
        if value is None:
            altered.pop(key, None)
        else:
            problem = problem or value_problem(entity, key, value)
            altered[key] = value
    if problem is not None:
        raise KafkaError(ErrorCode.invalid_request, problem)
    if altered == dict(current):
        return []
    path = quota_path(entity)
    if not altered:
        return [Delete(path)]
    data = encode_quota(ClientQuota(entity, altered))
    return [SetData(path, data) if current else Create(path, data)]
