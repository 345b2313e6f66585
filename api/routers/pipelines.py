"""`/headwater/v1/pipelines`: the status of all pipelines. The prefix is Headwater's: Confluent has no such resource."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Path, Request

from headwater.api.json_route import JsonRoute
from headwater.api.pipeline_status import PipelineStatus
from headwater.api.schemas.pipelines import PipelineData, PipelineListData, StageData
from headwater.api.schemas.resource import ListMetadata
from headwater.api.topic_model import ErrorCode, TopicAdminError

if TYPE_CHECKING:
    from headwater.pipelines.monitoring.status import StageStatus

PREFIX = "/headwater/v1"
NAME_LENGTH_MAX = 200

router = APIRouter(tags=["pipelines"], prefix=PREFIX, route_class=JsonRoute)


async def get_status(request: Request) -> PipelineStatus:
    """Return the application's reader of the status topic."""
    status = request.app.state.pipelines
    assert isinstance(status, PipelineStatus)
    return status


async def get_root(request: Request) -> str:
    """Return the URL of the list."""
    return f"{str(request.base_url).rstrip('/')}{PREFIX}/pipelines"


Status = Annotated[PipelineStatus, Depends(get_status)]
Root = Annotated[str, Depends(get_root)]
PipelineName = Annotated[str, Path(max_length=NAME_LENGTH_MAX, description="Name of a pipeline")]
StageName = Annotated[str, Path(max_length=NAME_LENGTH_MAX, description="Name of a stage")]


@router.get("/pipelines")
def list_pipelines(status: Status, root: Root) -> PipelineListData:
    """List the pipelines with their stages."""
    by_pipeline: dict[str, list[StageStatus]] = {}
    for (pipeline, _), stage in status.stages().items():
        by_pipeline.setdefault(pipeline, []).append(stage)
    now_ms = status.now_ms()
    data = [PipelineData.of(name, stages, root, now_ms) for name, stages in by_pipeline.items()]
    return PipelineListData(metadata=ListMetadata(self_url=root), data=data)


@router.get("/pipelines/{pipeline}")
def get_pipeline(status: Status, root: Root, pipeline: PipelineName) -> PipelineData:
    """Describe one pipeline."""
    stages = [stage for (name, _), stage in status.stages().items() if name == pipeline]
    if not stages:
        raise TopicAdminError(ErrorCode.UNKNOWN_PIPELINE, f"no run of a pipeline {pipeline[:60]!r} is known")
    return PipelineData.of(pipeline, stages, root, status.now_ms())


@router.get("/pipelines/{pipeline}/stages/{stage}")
def get_stage(status: Status, root: Root, pipeline: PipelineName, stage: StageName) -> StageData:
    """Describe one stage."""
    found = status.stages().get((pipeline, stage))
    if found is None:
        message = f"no run of a stage {stage[:60]!r} of a pipeline {pipeline[:60]!r} is known"
        raise TopicAdminError(ErrorCode.UNKNOWN_PIPELINE, message)
    return StageData.of(found, f"{root}/{pipeline}", status.now_ms())
