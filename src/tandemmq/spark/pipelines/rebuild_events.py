"""What a rebuild tells besides what every pipeline tells."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.spark.pipelines.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildStep(Event):
    """Spark's tasks of a stage that are done."""

    kind = "step"
    is_tick = True

    stage: str
    tasks_done: int
    tasks: int
    seconds: float

    def render(self) -> str:
        return f"{self.stage}: {self.tasks_done} of {self.tasks} tasks, {self.seconds:.0f} s"
