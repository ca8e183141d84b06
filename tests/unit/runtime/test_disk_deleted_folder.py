"""Syncing a file whose new folder was deleted before, as when a topic is deleted at that moment."""

from __future__ import annotations

import shutil
from pathlib import Path

from tandemmq.runtime.disk import RealDisk


def test_a_folder_that_is_gone_needs_no_sync(tmp_path: Path) -> None:
    file = RealDisk().create(tmp_path / "topic" / "0" / "00000000000000000000", 4096)
    shutil.rmtree(tmp_path / "topic")
    file.sync()
    file.close()
