"""The pipeline that docs/tutorials/first_pipeline.md builds is correct at each step, as the page shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headwater.pipelines.definition.plan import make_plan
from headwater.pipelines.errors import PipelineError
from headwater.pipelines.validation.pipeline_file import load

PAGE = (Path(__file__).parents[3] / "docs" / "tutorials" / "first_pipeline.md").read_text()
FIRST, STAGE = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)


def stages(text: str, folder: Path) -> list[str]:
    """The stages of the page's pipeline, beside the page's schema."""
    [schema] = re.findall(r"cat > order.json <<'END'\n(.*?)END\n", PAGE, flags=re.DOTALL)
    (folder / "order.json").write_text(schema)
    (folder / "pipeline.yaml").write_text(text)
    pipeline = load(str(folder / "pipeline.yaml"), environ={})
    assert pipeline.warnings == ()
    return [stage.name for stage in make_plan(pipeline).stages]


def test_the_first_pipeline_is_correct(tmp_path: Path) -> None:
    assert stages(FIRST, tmp_path) == ["clean"]


def test_the_second_stage_fits_after_the_first(tmp_path: Path) -> None:
    assert stages(FIRST.replace("\ntests:\n", f"\n{STAGE}\ntests:\n"), tmp_path) == ["clean", "hourly"]


def test_a_field_that_the_pages_schema_lacks_would_be_noticed(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="shop"):
        stages(FIRST.replace("lower(shop)", "lower(shopp)"), tmp_path)
