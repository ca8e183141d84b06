"""What a rebuild tells besides what every pipeline tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildStep:
    """Spark's tasks of a stage that are done."""

    kind: ClassVar[str] = "step"

    stage: str
    tasks_done: int
    tasks: int
    seconds: float

    def render(self) -> str:
        return f"{self.stage}: {self.tasks_done} of {self.tasks} tasks, {self.seconds:.0f} s"
