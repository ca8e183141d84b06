"""The tools that read Spark pipelines from the folder with their progress. A method's docstring is what an
assistant reads about the tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from tandemmq.errors import BadRequest
from tandemmq.manage.pipelines import PipelineState, read_pipelines
from tandemmq.mcp.answers import UNTRUSTED, Facts, Limit, Search, cut, facts, matching, rows_of, text
from tandemmq.runtime.disk import RealDisk

_SUMMARY: Final = (
    "pipeline=name state topic out error rows=rows_total bad_rows=bad_total bytes=bytes_total lag"
    " rows_per_second=rate restarts updated_at"
)


@dataclass(frozen=True, slots=True)
class PipelineReads:
    """The reads of the pipelines of one folder."""

    folder: Path

    async def list_pipelines(self, search: Search = "", limit: Limit = 50) -> Facts:
        """Lists Spark pipelines with state, topic, rows, lag and error."""
        rows = rows_of(await self._read(), _SUMMARY)
        return {"note": UNTRUSTED, "untrusted": cut("pipelines", matching(rows, search), limit)}

    async def describe_pipeline(
        self,
        pipeline: Annotated[str, text("The pipeline.")],
        limit: Limit = 20,
    ) -> Facts:
        """Shows one Spark pipeline with its last batches, and the results of an audit, the newest first."""
        found = next((one for one in await self._read() if one.name == pipeline), None)
        if found is None:
            raise BadRequest(f"there is no pipeline {pipeline!r}")
        return {
            "note": UNTRUSTED,
            "untrusted": {
                **facts(found, _SUMMARY),
                **cut("batches", [dict(one) for one in found.batches[::-1]], limit),
                **cut("results", [dict(one) for one in found.results[::-1]], limit),
            },
        }

    async def _read(self) -> list[PipelineState]:
        return await RealDisk().offload(partial(read_pipelines, self.folder))
