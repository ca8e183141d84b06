"""Every action on both clusters, made in a browser; its effect is checked in the cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from browser import LIGHT, Look, Reader, picture_name
from drives import DRIVES
from sites import Site

from tandemmq.console.pages import ALL
from tandemmq.console.view import Action

pytestmark = [pytest.mark.console, pytest.mark.timeout(600)]
ACTIONS = ("/login", "/logout", "/theme", *(one.path for one in ALL if isinstance(one, Action)))


@pytest.mark.parametrize("action", ACTIONS)
def test_action(action: str, site: Site, open_look: Callable[[Look], Reader]) -> None:
    assert action in DRIVES, f"the action {action} has no drive in tests/console/drives.py"
    reader = open_look(LIGHT)
    DRIVES[action](reader, site)
    reader.check(f"after-{picture_name(action)}")
