"""Topics made by use that are not on disk yet, and the sends that wait until they are.

A message may be acknowledged only when its topic would still be known after a crash; otherwise the message
is stored and cannot be read (spec store 18). So the sends to a new topic are held until `topics.json` is
written, and then handled as if they had just come, in the order in which they came. Sends to other topics
never wait.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tandemmq.broker.table_file import TableFile, TableSaver
from tandemmq.errors import Busy

HELD_SENDS_MAX = 10_000

Resume = Callable[[OSError | None], None]
"""Goes on with a held send; with the error when the topic could not be written."""


class UnsavedTopics:
    """Which topics wait to be written, and who waits for them."""

    def __init__(self, saver: TableSaver, file: TableFile) -> None:
        self._saver = saver
        self._file = file
        self._held: dict[str, list[Resume]] = {}
        self._held_count = 0
        self._is_asked = False

    def __contains__(self, topic: str) -> bool:
        return topic in self._held

    def add(self, topic: str) -> None:
        """The topic was made just now, and its table is marked as changed."""
        self._held.setdefault(topic, [])
        self._ask()

    def hold(self, topic: str, resume: Resume) -> None:
        """Has `resume` called once the topic is on disk, or cannot be written.

        Raises:  Busy when HELD_SENDS_MAX sends wait already.
        """
        if self._held_count >= HELD_SENDS_MAX:
            raise Busy(f"[OVERLOAD]{HELD_SENDS_MAX} sends wait for new topics to be written, try again")
        self._held[topic].append(resume)
        self._held_count += 1
        self._ask()

    def _ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self._saver.save_then(self._file, partial(self._on_saved, list(self._held)))

    def _on_saved(self, topics: list[str], error: OSError | None) -> None:
        self._is_asked = False
        ready: list[Resume] = []
        for topic in topics:
            ready += self._held[topic]
            if error is None:
                del self._held[topic]
            else:
                self._held[topic] = []  # still unsaved: the next send to it asks again
        self._held_count -= len(ready)
        if error is None and self._held:
            self._ask()
        for resume in ready:
            resume(error)
