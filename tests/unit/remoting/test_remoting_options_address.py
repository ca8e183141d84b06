import pytest

from tandemmq.errors import ConfigError
from tandemmq.remoting.options import parse_address, render_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        (" broker-a.local:0 ", ("broker-a.local", 0)),
        ("[::1]:10911", ("::1", 10911)),
        ("::1:10911", ("::1", 10911)),
    ],
)
def test_addresses_parse(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":9876",
        "host:port",
        "host:65536",
        "host:-1",
        "a b:1",
        "[::1:1",
        "h:¹",
        "http://h:1",
    ],
)
def test_other_texts_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="expected host:port"):
        parse_address(text)


def test_rendering_brackets_ipv6() -> None:
    assert render_address(("::1", 1)) == "[::1]:1"
    assert render_address(("h", 1)) == "h:1"
