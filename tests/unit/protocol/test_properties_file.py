"""Java properties syntax."""

from __future__ import annotations

import pytest

from tandemmq.errors import ConfigError
from tandemmq.protocol.properties_file import Setting, parse_properties


def texts(data: bytes) -> dict[str, str]:
    return {key: setting.text for key, setting in parse_properties(data, "f").items()}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {}),
        (b"a=b", {"a": "b"}),
        (b"  a = b  \n", {"a": "b"}),
        (b"a:b\nc d\ne\tf", {"a": "b", "c": "d", "e": "f"}),
        (b"a = = b", {"a": "= b"}),
        (b"a\nb=\nc:", {"a": "", "b": "", "c": ""}),
        (b"# a=b\n  ! c=d\ne=f # g", {"e": "f # g"}),
        (b"a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        (b"a=1\na=2", {"a": "2"}),
        (b"a=b,\\\n   c,\\\n\td", {"a": "b,c,d"}),
        (b"a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        (b"a=b\\", {"a": "b"}),
        (b"\\\n", {}),
        (b"\\\na=b", {"a": "b"}),
        (b"a=b\\\n#c", {"a": "b#c"}),
        (b"a\\=b\\:c\\ d=e", {"a=b:c d": "e"}),
        (b"a=\\t\\n\\q\\u00e9\\u4e2d", {"a": "q\u00e9\u4e2d"}),
        (b"p=C:\\\\data\\\\store", {"p": "C:\\data\\store"}),
        ("a=\u00e9".encode(), {"a": "\u00e9"}),
        (b"a=\xe9", {"a": "\u00e9"}),
        (b"\xef\xbb\xbfa=b", {"a": "b"}),
        (b"messageDelayLevel=1s 5s", {"messageDelayLevel": "1s 5s"}),
    ],
)
def test_file_is_read_as_java_reads_it(data: bytes, expected: dict[str, str]) -> None:
    assert texts(data) == expected


def test_origin_is_the_line_where_the_setting_begins() -> None:
    parsed = parse_properties(b"# x\n\na=b\\\n  c\nd=e", "broker.conf")
    assert parsed == {"a": Setting("bc", "broker.conf, line 3"), "d": Setting("e", "broker.conf, line 5")}


@pytest.mark.parametrize("escape", [b"\\u", b"\\u12", b"\\u12x4"])
def test_broken_escape_is_told_with_its_line(escape: bytes) -> None:
    with pytest.raises(ConfigError, match=r"f, line 2: \\u.*four hexadecimal digits"):
        parse_properties(b"a=b\nc=" + escape, "f")
