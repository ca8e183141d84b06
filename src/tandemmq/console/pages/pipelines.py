"""Spark pipelines: their state and their last batches, from the folder that --pipelines names."""

from __future__ import annotations

from functools import partial
from typing import Final

from tandemmq.console.view import Answer, Page, PageError, View
from tandemmq.manage.pipelines import PipelineState, read_pipelines
from tandemmq.runtime.disk import RealDisk

BATCHES_SHOWN_MAX: Final = 50


async def show_pipelines(view: View) -> Answer:
    """Shows all pipelines, or how to make them visible."""
    listing = view.listing(
        await _pipelines(view),
        search=lambda one: f"{one.name} {one.topic} {one.out} {one.state}",
        sorts={
            "name": lambda one: one.name,
            "state": lambda one: one.state,
            "lag": lambda one: one.lag,
            "updated": lambda one: one.updated_at_ms,
        },
    )
    return view.page("pipelines.html", listing=listing, folder=view.frame.pipelines)


async def show_pipeline(view: View) -> Answer:
    """Shows one pipeline with its last batches and results."""
    name = view.path["pipeline"]
    found = next((one for one in await _pipelines(view) if one.name == name), None)
    if found is None:
        raise PageError(404, f"there is no pipeline {name}")
    batches = found.batches[-BATCHES_SHOWN_MAX:][::-1]
    return view.page(
        "pipeline.html",
        title=name,
        pipeline=found,
        batches=batches,
        results=found.results[-BATCHES_SHOWN_MAX:],
    )


async def _pipelines(view: View) -> list[PipelineState]:
    folder = view.frame.pipelines
    return [] if folder is None else await RealDisk().offload(partial(read_pipelines, folder))


PAGES: Final = (
    Page("/pipelines", "Spark pipelines", show_pipelines, menu="Clients", refresh_s=5),
    Page("/pipelines/{pipeline}", "Spark pipeline", show_pipeline, refresh_s=5),
)
