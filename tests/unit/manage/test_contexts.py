"""The contexts of the user: a private file, and the credentials and TLS of the command inside one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.errors import ConfigError
from tandemmq.manage.contexts import (
    CONTEXTS_MAX,
    ClusterContext,
    ContextFile,
    contexts_path,
    read_contexts,
    use_context,
    write_contexts,
)
from tandemmq.manage.tools import tools_options

PROD = ClusterContext("ns:9876", access_key="ops", secret_key="hidden", has_tls=True, tls_ca="/ca.pem")


@pytest.fixture(autouse=True)
def config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_the_file_is_private_and_keeps_the_contexts() -> None:
    assert read_contexts() == ContextFile()
    write_contexts(ContextFile({"prod": PROD}, current="prod"))
    assert contexts_path().stat().st_mode & 0o777 == 0o600
    assert read_contexts().find(read_contexts().current) == PROD
    with pytest.raises(ConfigError, match="unknown context 'prd'; known contexts: prod"):
        read_contexts().find("prd")


def test_a_file_that_others_can_read_or_that_is_invalid_is_refused() -> None:
    write_contexts(ContextFile({"prod": PROD}))
    contexts_path().chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_contexts()
    contexts_path().chmod(0o600)
    contexts_path().write_text('{"contexts": {"a": {"name_server": "x"}}}')
    with pytest.raises(ConfigError, match="name_server"):
        read_contexts()


def test_the_number_of_contexts_is_bounded() -> None:
    with pytest.raises(ConfigError, match="delete one"):
        write_contexts(ContextFile({f"c{number}": PROD for number in range(CONTEXTS_MAX + 1)}))


def test_a_path_that_is_not_absolute_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert contexts_path() == Path.home() / ".config" / "tandemmq" / "contexts.json"


def test_a_command_in_a_context_uses_nothing_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text("accessKey: other\nsecretKey: other-secret\n")
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    monkeypatch.setenv("TANDEMMQ_TLS_CA", "/other.pem")
    with use_context(PROD):
        inside = tools_options()
    assert (inside.access_key, inside.secret_key) == ("ops", "hidden")
    assert inside.tls is not None
    assert inside.tls.trust_path == Path("/ca.pem")
    with use_context(ClusterContext("ns:9876")):
        plain = tools_options()
    assert (plain.access_key, plain.tls) == ("", None)
    assert tools_options().access_key == "other"


def test_no_text_form_contains_the_secret() -> None:
    assert "hidden" not in repr(PROD) + str(PROD) + repr(ContextFile({"prod": PROD}))
