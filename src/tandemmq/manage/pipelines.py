"""The state of Spark pipelines, from the progress that they write: a folder with one file NAME.jsonl for
each, the output of `tandemmq pipeline ... --progress json > NAME.jsonl`. Used by pages.

At a bound: of a folder the PIPELINES_MAX newest files count, and of a file its first HEAD_BYTES and its last
TAIL_BYTES. Lines that are not JSON objects, such as a line that is being written, are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from tandemmq.errors import ConfigError

PIPELINES_MAX: Final = 200
HEAD_BYTES: Final = 4096
TAIL_BYTES: Final = 64 * 1024
SUFFIX: Final = ".jsonl"
HISTORY_MAX: Final = 200


@dataclass(slots=True)
class PipelineState:
    """One pipeline. `state` is running, restarting, stopped, failed, or unknown without an event;
    `updated_at_ms` is the time of the last line. Counts are None where the pipeline has not reported them.
    """

    name: str
    updated_at_ms: int
    state: str = "unknown"
    topic: str = ""
    out: str = ""
    error: str = ""
    rows_total: int | None = None
    bytes_total: int | None = None
    bad_total: int | None = None
    lag: int | None = None
    rate: int | None = None
    restarts: int = 0
    batches: list[Mapping[str, Any]] = field(default_factory=list)
    """The last events `batch`, the newest last."""
    results: list[Mapping[str, Any]] = field(default_factory=list)
    """The verdicts and differences of an audit."""


def read_pipelines(folder: Path) -> list[PipelineState]:
    """Returns the pipelines of a folder by name. Raises ConfigError if the folder cannot be read."""
    try:
        files = [
            (one.stat().st_mtime, one) for one in folder.iterdir() if one.suffix == SUFFIX and one.is_file()
        ]
    except OSError as error:
        raise ConfigError(
            f"the folder of the pipelines, {folder}, cannot be read: {error.strerror}"
        ) from error
    newest = sorted(files, reverse=True)[:PIPELINES_MAX]
    return sorted((_read(path, int(at * 1000)) for at, path in newest), key=lambda one: one.name)


def _read(path: Path, updated_at_ms: int) -> PipelineState:
    pipeline = PipelineState(path.name.removesuffix(SUFFIX), updated_at_ms)
    try:
        events = list(_events(path))
    except OSError as error:
        pipeline.error = f"the file cannot be read: {error.strerror}"
        return pipeline
    for event in events:
        _apply(pipeline, event)
    return pipeline


def _events(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(HEAD_BYTES + TAIL_BYTES)
        if size > HEAD_BYTES + TAIL_BYTES:
            file.seek(size - TAIL_BYTES)
            # The newlines keep the cut lines at both sides apart: neither is a complete object.
            data = data[:HEAD_BYTES] + b"\n\n" + file.read(TAIL_BYTES)
    for line in data.splitlines():
        try:
            event = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(event, dict):
            yield event


def _apply(pipeline: PipelineState, event: Mapping[str, Any]) -> None:
    kind = event.get("event")
    pipeline.rows_total = _count(event, "rows_total", pipeline.rows_total)
    pipeline.bytes_total = _count(event, "bytes_total", pipeline.bytes_total)
    pipeline.bad_total = _count(event, "bad_total", pipeline.bad_total)
    match kind:
        case "started":
            pipeline.state, pipeline.error = "running", ""
            pipeline.topic, pipeline.out = (
                _text(event, "topic"),
                _text(event, "out") or _text(event, "reference"),
            )
        case "batch":
            pipeline.state = "running"
            pipeline.lag, pipeline.rate = _count(event, "lag", None), _count(event, "rate", None)
            pipeline.batches = [*pipeline.batches[1 - HISTORY_MAX :], event]
        case "restarted":
            pipeline.state, pipeline.error = "restarting", _text(event, "error")
            pipeline.restarts += 1
        case "stopped":
            pipeline.error = _text(event, "error")
            pipeline.state = "failed" if event.get("reason") in ("error", "different") else "stopped"
        case "verdict" | "difference":
            pipeline.results = [*pipeline.results[1 - HISTORY_MAX :], event]


def _text(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name, "")
    return value if isinstance(value, str) else ""


def _count(event: Mapping[str, Any], name: str, otherwise: int | None) -> int | None:
    value = event.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise
