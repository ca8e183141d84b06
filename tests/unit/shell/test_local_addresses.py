"""Addresses of this machine for a local cluster."""

from __future__ import annotations

import pytest

from tandemmq.shell.local import is_own_address


@pytest.mark.parametrize(("host", "is_own"), [("127.0.0.1", True), ("0.0.0.0", True), ("192.0.2.1", False)])
def test_an_address_without_an_interface_is_known(host: str, is_own: bool) -> None:
    assert is_own_address(host) is is_own
