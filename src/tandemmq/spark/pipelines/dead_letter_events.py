"""What a look at dead letters tells."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.spark.pipelines.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersSeen(Event):
    """How many were chosen; `kinds`: groups of one topic, error and age."""

    kind = "dead_letters"
    is_lasting = True

    group: str
    messages: int
    kinds: int

    def render(self) -> str:
        if not self.messages:
            return f"{self.group}: no dead letters"
        return f"{self.group}: {self.messages:,} dead letters of {self.kinds} kinds"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(Event):
    """One of them. `stored_at`: when it died, UTC; `id`: of the message that it was."""

    kind = "dead_letter"
    is_lasting = True
    table = "The oldest"

    stored_at: str
    origin: str
    id: str
    keys: str
    retries: int
    error: str
    body: str

    def render(self) -> str:
        keys = f" keys {self.keys}" if self.keys else ""
        return f"{self.stored_at} {self.origin} {self.id}{keys}: {self.error}: {self.body}"
