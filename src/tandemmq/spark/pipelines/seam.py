"""Where a lake ends and its topic goes on: what is committed, and the offsets behind it.

Spark's checkpoint says where each batch ends. Only batches that are in the lake count, all of one look at it;
so a landing that goes on meanwhile changes nothing. Must not know Spark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.view import LakeView, view_lake
from tandemmq.spark.offsets import Positions, decode_offset
from tandemmq.spark.pipelines.lake_job import CHECKPOINT_DIR


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """`view`: what is read of the lake; `positions`: of each queue the first offset that it has not."""

    view: LakeView
    positions: Positions


def find_seam(lake: Path, checkpoint: Path | None = None) -> Seam:
    """The seam as it is now; a lake without batches begins where its topic begins.

    Raises:  ConfigError when the checkpoint does not tell the offsets of the last batch.
    """
    view = view_lake(lake)
    if view.last_batch is None:
        return Seam(view=view, positions={})
    directory = checkpoint or lake / CHECKPOINT_DIR
    document = _read_end(directory / "offsets", view.last_batch)
    if document is None:
        raise ConfigError(
            f"{directory} does not tell where batch {view.last_batch} of {lake} ends: give the checkpoint of"
            " its landing"
        )
    return Seam(view=view, positions=decode_offset(document).positions)


def _read_end(offsets: Path, batch: int) -> dict[str, object] | None:
    """The end offset of a batch: the last line of Spark's file behind its version and settings."""
    try:
        lines = (offsets / str(batch)).read_text().splitlines()
    except FileNotFoundError:
        return None
    document = json.loads(lines[-1])
    return document if isinstance(document, dict) else None
