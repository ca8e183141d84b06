"""The log of a process of ours: every logger's lines on standard error."""

from __future__ import annotations

import logging
from typing import Final

from tandemmq.telemetry.log_lines import make_handler

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


def configure_logging(level: str) -> None:
    """Sends every logger's lines of `level` and above to standard error."""
    root = logging.getLogger()
    root.handlers[:] = [make_handler()]
    root.setLevel(level)
