"""The queues that an exactly-once query sends to, written down before its first send.

A replay must send each row to the queue where it may be already, also when a broker is away for a moment or
the topic has grown since; so the choice is made once per query and topic and kept beside its checkpoint.
Runs on the driver. Must not know Spark.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.spark.lake.files import sync_dir, sync_file
from tandemmq.spark.sink.once import Pins
from tandemmq.spark.sink.options import SinkOptions
from tandemmq.spark.sink.sender import Sender

PIN_FILE = "queues.json"
PIN_VERSION = 1


def pin_queues(options: SinkOptions) -> Pins:
    """The queues of all topics of a write: as written down before, else as the name servers say now.

    Raises:  ConfigError for a file of another version, NoRoute for a topic that nobody takes messages for.
    """
    path = Path(options.state_dir) / PIN_FILE if options.state_dir else None
    pins = _read(path) if path else {}
    missing = [topic for topic in options.once_topics if topic not in pins]
    if not missing:
        return pins
    sender = Sender(options)
    try:
        pins.update({topic: tuple(sender.queues(topic)) for topic in missing})
    finally:
        sender.close()
    if path:
        _write(path, pins)
    return pins


def _read(path: Path) -> Pins:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    if document.get("version") != PIN_VERSION:
        raise ConfigError(f"{path} has version {document.get('version')!r}, not {PIN_VERSION}")
    return {topic: _queues(topic, places) for topic, places in document["topics"].items()}


def _queues(topic: str, places: Sequence[tuple[str, int]]) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic=topic, broker_name=name, queue_id=queue_id) for name, queue_id in places)


def _write(path: Path, pins: Pins) -> None:
    topics = {topic: [(q.broker_name, q.queue_id) for q in queues] for topic, queues in pins.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f"{path.name}.{uuid4().hex[:12]}")
    staged.write_text(json.dumps({"version": PIN_VERSION, "topics": topics}) + "\n")
    sync_file(staged)
    os.replace(staged, path)
    sync_dir(path.parent)
