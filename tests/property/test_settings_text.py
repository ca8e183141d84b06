"""Settings: any bytes give settings or a ConfigError, and escaped values are restored."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.config.load import MachineFacts, load_broker, load_name_server, read_settings
from tandemmq.config.names import BROKER_KEYS, NAMESERVER_KEYS
from tandemmq.errors import ConfigError
from tandemmq.protocol.properties_file import parse_properties

MACHINE = MachineFacts(host_name="box", address="10.1.2.3", memory_bytes=8 << 30, home=Path("/home/u"))


@given(st.one_of(st.binary(max_size=80), st.text("ab=: \\\n\r#!u0\t", max_size=40).map(str.encode)))
def test_any_bytes_give_settings_or_a_config_error(data: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse_properties(data, "f")


def escape(text: str) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in text)


@given(
    st.dictionaries(
        st.text(st.characters(max_codepoint=0xD7FF), min_size=1), st.text("abc=:#!\\ é", max_size=20)
    )
)
def test_escaped_settings_come_back(settings: dict[str, str]) -> None:
    data = "\n".join(f"{escape(key)}={escape(value)}" for key, value in settings.items()).encode()
    parsed = {key: setting.text for key, setting in parse_properties(data, "f").items()}
    assert parsed == {key: value.strip() for key, value in settings.items()}


TEXTS = st.one_of(
    st.text(max_size=10),
    st.integers().map(str),
    st.sampled_from(["true", "SLAVE", "a:1", "1s", "0", "²", "٣"]),
)


@given(st.dictionaries(st.sampled_from(sorted(BROKER_KEYS)), TEXTS, max_size=3))
def test_any_text_of_a_setting_gives_options_or_a_config_error(settings: dict[str, str]) -> None:
    with contextlib.suppress(ConfigError):
        load_broker(read_settings(None, [f"{key}={text}" for key, text in settings.items()]), MACHINE)


@given(st.dictionaries(st.sampled_from(sorted(NAMESERVER_KEYS)), TEXTS, max_size=3))
def test_any_text_of_a_name_servers_setting_gives_options_or_a_config_error(settings: dict[str, str]) -> None:
    with contextlib.suppress(ConfigError):
        load_name_server(read_settings(None, [f"{key}={text}" for key, text in settings.items()]))
