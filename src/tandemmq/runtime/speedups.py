"""Loads the optional kernel of `tandemmq-speedups` (`protocol.speedups`) at the start of a server."""

from __future__ import annotations

import importlib
import os
from typing import Final, cast

from tandemmq import __version__
from tandemmq.protocol import speedups

SWITCH: Final = "TANDEMMQ_SPEEDUPS"
"""The environment variable that keeps the kernel out with the value `off`."""


def load_speedups() -> None:
    """Loads the kernel if it is installed, has the version and interface of this package, and is on."""
    speedups.kernel, speedups.state = None, "not installed"
    if os.environ.get(SWITCH) == "off":
        speedups.state = f"switched off by {SWITCH}"
        return
    try:
        module = importlib.import_module("tandemmq_speedups")
    except ModuleNotFoundError:
        return
    except ImportError as error:
        speedups.state = f"refused: it cannot be loaded: {error}"
        return
    version = getattr(module, "__version__", "unknown")  # a folder of that name has none
    if version != __version__:
        speedups.state = f"refused: it has version {version}, this package {__version__}"
        return
    interface = getattr(module, "INTERFACE", "unknown")  # kernels of older commits have none
    if interface != speedups.INTERFACE:
        speedups.state = f"refused: it has interface {interface}, this package {speedups.INTERFACE}"
        return
    speedups.kernel, speedups.state = cast(speedups.Kernel, module), "used"
