"""Checks the small files of a store: checkpoint, abort, the JSON files under `config`.

Source: spec store 1, 10, 18.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Any

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.loose_json import parse
from tandemmq.store.checkpoint import CHECKPOINT_BYTES
from tandemmq.store.inspect.findings import Findings, Part
from tandemmq.store.inspect.log_walk import LogWalk
from tandemmq.units import MIB

CONFIG_BYTES_MAX = 256 * MIB
INDEX_SLACK_MS = 999
"""A key index that was cut knows the time of its end in whole seconds only."""
_CHECKPOINT = Struct(">qqqqq")
_TIMES = ("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp")


def check_checkpoint(path: Path, walk: LogWalk, findings: Findings) -> None:
    """A checkpoint must not claim more than the log has: it chooses where recovery begins to read."""
    if not path.is_file():
        findings.note(Part.CHECKPOINT, path, "there is none: a start after a crash reads the whole log")
        return
    data = path.read_bytes()
    if len(data) != CHECKPOINT_BYTES:
        reason = f"the file must have {CHECKPOINT_BYTES} bytes, it has {len(data)}"
        findings.damage(Part.CHECKPOINT, path, reason, size_bytes=len(data))
        return
    *times, _, confirmed = _CHECKPOINT.unpack_from(data)
    for index, (name, time_ms) in enumerate(zip(_TIMES, times, strict=True)):
        slack_ms = INDEX_SLACK_MS if name == "indexMsgTimestamp" else 0
        if not 0 <= time_ms <= walk.stored_at_ms + slack_ms:
            reason = f"{name} is {time_ms}, but the newest record was stored at {walk.stored_at_ms}"
            findings.damage(Part.CHECKPOINT, path, reason, offset=8 * index, size_bytes=8)
    if not 0 <= confirmed <= walk.intact_end:
        reason = f"confirmPhyOffset is {confirmed}, but the log ends at {walk.intact_end}"
        findings.damage(Part.CHECKPOINT, path, reason, offset=32, size_bytes=8)


def check_abort(path: Path, findings: Findings) -> bool:
    """True when the last run did not end cleanly."""
    if not path.exists():
        return False
    text = path.read_bytes()[:64].decode("latin-1").strip()
    process_id = text.partition(" ")[0]
    owner = f"process {process_id}" if process_id.isdigit() else "an unknown process"
    findings.note(Part.MARKS, path, f"the store was not closed (by {owner}): the next start will recover it")
    return True


def check_config(directory: Path, findings: Findings) -> dict[str, Any]:
    """The readable JSON files by name; an unreadable one is damage unless it is only a `.bak`."""
    values: dict[str, Any] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if not path.is_file() or path.name == "timercheck" or path.name.endswith((".tmp", ".properties")):
            continue
        if not path.name.removesuffix(".bak").endswith((".json", "metrics", "Metrics")):
            continue
        value = _read_json(path, findings)
        if isinstance(value, dict):
            values[path.name] = value
    return values


def _read_json(path: Path, findings: Findings) -> Any:
    is_backup = path.name.endswith(".bak")
    size = path.stat().st_size
    if size > CONFIG_BYTES_MAX:
        findings.note(Part.CONFIG, path, f"not read: it has {size} bytes")
        return None
    data = path.read_bytes()
    try:
        value = parse(data) if data.strip(b" \t\r\n\0") else None
    except RemoteProtocolError as error:
        findings.report(Part.CONFIG, path, f"is no JSON: {error}", is_expected=is_backup)
        return None
    if isinstance(value, dict):
        return value
    reason = "is empty" if value is None else "holds no JSON object"
    # RocketMQ leaves an empty file for an empty table; brokers read the backup then.
    findings.report(Part.CONFIG, path, reason, is_expected=is_backup or value is None)
    return None


def known_topics(config: Mapping[str, Any]) -> frozenset[str] | None:
    """The topics that `topics.json` names; None when it cannot be read."""
    table = config.get("topics.json", config.get("topics.json.bak", {})).get("topicConfigTable")
    return frozenset(table) if isinstance(table, dict) else None


def deleted_topics(config: Mapping[str, Any]) -> dict[str, int]:
    """Topic -> log offset below which its records are deleted, by `deletedTopics.json`."""
    table = config.get("deletedTopics.json", {}).get("deletedTopicTable")
    items = table.items() if isinstance(table, dict) else ()
    return {topic: end for topic, end in items if isinstance(end, int)}


def check_consumer_offsets(
    directory: Path, config: Mapping[str, Any], ends: Mapping[tuple[str, int], int], findings: Findings
) -> None:
    """Notes where a group says that it consumed more than the queue has."""
    path = directory / "consumerOffset.json"
    table = config.get(path.name, {}).get("offsetTable", {})
    for key, offsets in table.items() if isinstance(table, dict) else ():
        topic, _, group = key.partition("@")
        for queue_text, offset in offsets.items() if isinstance(offsets, dict) else ():
            queue_id = int(queue_text) if queue_text.isdigit() else -1
            end = ends.get((topic, queue_id))
            if end is not None and isinstance(offset, int) and offset > end:
                reason = f"group {group} has consumed up to {offset}, but the queue ends at {end}"
                findings.note(Part.CONFIG, path, reason, topic=topic, queue_id=queue_id, queue_offset=offset)
