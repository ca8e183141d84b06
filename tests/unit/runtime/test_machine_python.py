"""The builds of Python of which servers warn."""

from __future__ import annotations

import sysconfig

import pytest

from tandemmq.runtime.machine import is_optimized_python


@pytest.mark.parametrize(
    ("arguments", "is_optimized"),
    [
        ("'--prefix=/usr/local' '--enable-optimizations' '--with-lto'", True),
        ("'--enable-shared' '--prefix=/usr' '--without-ensurepip'", True),
        ("'--prefix=/home/me/.pyenv/versions/3.12.1' '--enable-shared'", False),
        ("'--prefix=/usr/local'", False),
        (None, True),
    ],
    ids=["official image", "Debian", "pyenv", "make install", "Windows"],
)
def test_the_build_decides(
    monkeypatch: pytest.MonkeyPatch, arguments: str | None, is_optimized: bool
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": arguments}.get)
    assert is_optimized_python() is is_optimized


def test_a_python_without_its_record_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_config_var(_: str) -> str:
        raise ModuleNotFoundError("No module named '_sysconfigdata__linux_x86_64-linux-gnu'")

    monkeypatch.setattr(sysconfig, "get_config_var", get_config_var)
    assert is_optimized_python()
