"""The state of a service of many topics (`serve`) in its directory, and the orders to it. Called by the
service, by `tandemmq pipeline served` and by the console.

The directory `_tandemmq` of the service has its last status and, per topic, the marks `paused/TOPIC`,
`redo/TOPIC`, and `redo-begun/TOPIC` while the lake is moved. Files survive a kill of the service, and need no
address of it. Must not know Spark.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandemmq.errors import ConfigError
from tandemmq.protocol.topic_names import check_topic
from tandemmq.spark.documents import read_document, sync_directory
from tandemmq.spark.lake.files import CONTROL_DIR

PAUSED, REDO, REDO_BEGUN = "paused", "redo", "redo-begun"
STATUS_FILE = "status.json"


@dataclass(frozen=True, slots=True)
class LandedTopic:
    """A topic as its service has reported it. `is_redone`: it is to be landed anew in its next turn;
    `next_try_s`: None unless it fails; `p50_s`, `p99_s`: the freshness of the last batch, None without one.
    """

    name: str
    state: str
    is_redone: bool
    rows: int
    bad: int
    lost: int
    lag: int
    p50_s: float | None
    p99_s: float | None
    error: str
    next_try_s: float | None


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The last status of a service. `error`: of its name servers."""

    time_ms: int
    error: str
    topics: tuple[LandedTopic, ...]


def read_status(out: Path) -> ServiceStatus | None:
    """Returns the last status of the service of a directory; None if none has run there.

    Raises:  ConfigError if the directory has something else.
    """
    control = out / CONTROL_DIR
    try:
        status = read_document(control / STATUS_FILE)
        if status is None:
            return None
        paused, redone = list_marks(control / PAUSED), list_marks(control / REDO)
        topics = (_read_topic(name, one, paused, redone) for name, one in status["topics"].items())
        return ServiceStatus(int(status["time_ms"]), status["error"], tuple(topics))
    except (OSError, ConfigError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{out}: the status of its service cannot be read: {error!r}") from error


def _read_topic(name: str, one: Mapping[str, Any], paused: set[str], redone: set[str]) -> LandedTopic:
    return LandedTopic(
        name=name,
        state=PAUSED if name in paused else one["state"],
        is_redone=name in redone,
        rows=one["total"]["rows"],
        bad=one["total"]["bad"],
        lost=one["lost"],
        lag=one.get("lag", 0),
        p50_s=one.get("p50_s"),
        p99_s=one.get("p99_s"),
        error=one["error"],
        next_try_s=one["next_try_seconds"],
    )


_MARKS = {
    "pause": (PAUSED, True),
    "resume": (PAUSED, False),
    "redo": (REDO, True),
    "cancel-redo": (REDO, False),
}
"""The mark that each order sets or removes."""


def order(out: Path, topic: str, what: str) -> None:
    """Orders the service to `pause`, `resume` or `redo` a topic, or withdraws a redo that has not begun
    (`cancel-redo`); the order is on disk when this returns.

    Raises:  BadRequest for a name that no topic can have; ConfigError if the directory cannot be written to,
             or no redo is pending.
    """
    check_topic(topic)
    name, is_set = _MARKS[what]
    marks, is_changed = out / CONTROL_DIR / name, True
    try:
        if is_set:
            set_mark(marks, topic)
        else:
            is_changed = remove_mark(marks, topic)
    except OSError as error:
        raise ConfigError(f"the order cannot be written: {error}") from error
    if what == "cancel-redo" and not is_changed:
        raise ConfigError(f"{topic}: no redo is pending: none was ordered, or it has begun")


def begin_redo(out: Path, topic: str) -> bool:
    """Returns True if a redo of the topic is ordered, or has begun before a kill; it can no longer be
    withdrawn.

    Renaming the mark decides: `cancel-redo` removes the same file, so only one of the two succeeds.
    """
    pending, begun = out / CONTROL_DIR / REDO, out / CONTROL_DIR / REDO_BEGUN
    if topic in list_marks(begun):
        return True
    begun.mkdir(parents=True, exist_ok=True)
    try:
        (pending / topic).rename(begun / topic)
    except FileNotFoundError:
        return False
    sync_directory(begun)
    sync_directory(pending)
    return True


def list_marks(directory: Path) -> set[str]:
    """Returns the topics that are marked in a directory."""
    return set(os.listdir(directory)) if directory.is_dir() else set()


def set_mark(directory: Path, topic: str) -> None:
    """Sets the mark of a topic; it is on disk when this returns."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / topic).touch()
    sync_directory(directory)


def remove_mark(directory: Path, topic: str) -> bool:
    """Removes the mark of a topic; returns False if it lacks one. The change is on disk when this returns."""
    try:
        (directory / topic).unlink()
    except FileNotFoundError:
        return False
    sync_directory(directory)
    return True


_LINE = "{:32} {:8} {:>12} {:>8} {:>8} {:>10} {:>7} {:>7}"


def render_status(out: Path) -> Iterator[str]:
    """Yields the lines of the service's last status."""
    status = read_status(out)
    if status is None:
        yield f"{out}: no service has run here"
        return
    age_s = time.time() - status.time_ms / 1000
    yield f"{out}: {len(status.topics)} topics, as of {age_s:.0f} s ago"
    if status.error:
        yield f"name servers: {status.error}"
    yield _LINE.format("topic", "state", "rows", "bad", "lost", "lag", "p50 s", "p99 s")
    for one in status.topics:
        counts = (f"{count:,}" for count in (one.rows, one.bad, one.lost, one.lag))
        fresh = ("-" if age is None else f"{age:.1f}" for age in (one.p50_s, one.p99_s))
        yield _LINE.format(one.name, one.state, *counts, *fresh)
        if one.error:
            yield f"    {one.error} (next try in {one.next_try_s:g} s)"
        if one.is_redone:
            yield "    to be landed anew; --cancel-redo keeps its lake"
