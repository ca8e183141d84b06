r"""Java properties syntax, used by broker.conf, namesrv.conf and the admin requests that change settings.

`key=value`, `key: value` or `key value`; a line that begins with # or ! is a comment. A backslash at the end
of a line continues it and otherwise escapes (\t \n \r \f \uXXXX, any other character stands for itself). The
last of two equal keys wins. Java reads the file as Latin-1; here UTF-8 is accepted with Latin-1 as fallback,
so that paths with umlauts mean what they show.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tandemmq.errors import ConfigError

_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED: Final = re.compile(r"\\(u[0-9a-fA-F]{0,4}|.|$)", re.DOTALL)
# A key ends at the first unescaped blank, = or :.
_KEY: Final = re.compile(r"((?:\\.|[^\\ \t\f=:])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


_PLAIN_LINE: Final = re.compile(r"[ \t\f]*([A-Za-z][A-Za-z0-9]*)[ \t\f]*(?:[=: \t\f]|$)")


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as written, and its origin, for messages to the user."""

    text: str
    origin: str


def parse_properties(data: bytes, source: str) -> dict[str, Setting]:
    r"""Returns the settings of a properties file; `source` is its name in messages.

    Raises:  ConfigError for an escape \u without four hexadecimal digits, with the line.
    """
    settings: dict[str, Setting] = {}
    for line_number, line in _logical_lines(_decode(data)):
        origin = f"{source}, line {line_number}"
        matched = _KEY.fullmatch(line)
        assert matched is not None
        key = _unescape(matched[1], origin)
        settings[key] = Setting(_unescape(matched[2], origin).strip(), origin)
    return settings


def parse_override(argument: str) -> tuple[str, Setting]:
    """Returns the key and the setting of one `--set KEY=VALUE`.

    Raises:  ConfigError without an equals sign or key.
    """
    key, equals, value = argument.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {argument}: must be KEY=VALUE")
    return key.strip(), Setting(value.strip(), "--set")


def edit_properties(data: bytes, settings: Mapping[str, str]) -> bytes:
    """Returns a properties file with these settings: existing lines are replaced in place, missing ones
    appended.

    Comments and everything else are unchanged. Of a key with two lines the last one counts.
    """
    lines = data.decode("utf-8", "surrogateescape").splitlines()
    left = dict(settings)
    for index in range(len(lines) - 1, -1, -1):
        matched = _PLAIN_LINE.match(lines[index])
        is_continuation = index > 0 and _is_continued(lines[index - 1])
        if matched is None or is_continuation or matched[1] not in left:
            continue
        end = index
        while end + 1 < len(lines) and _is_continued(lines[end]):
            end += 1
        lines[index : end + 1] = [_render(matched[1], left.pop(matched[1]))]
    lines += [_render(key, text) for key, text in left.items()]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def _render(key: str, text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"{key}={escaped}"


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields lines with continuations joined, each with its first line number; no blank lines, no
    comments.
    """
    pending = ""
    first = 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = raw.lstrip(_BLANKS)
        if not pending:
            if not line or line[0] in "#!":
                continue
            first = number
        pending += line
        trailing = len(pending) - len(pending.rstrip("\\"))
        if trailing % 2:
            # An empty remainder must not look like a line that never began.
            pending = pending[:-1] or _BLANKS[0]
            continue
        if pending.strip(_BLANKS):
            yield first, pending.lstrip(_BLANKS)
        pending = ""
    if pending.strip(_BLANKS):
        yield first, pending.lstrip(_BLANKS)


def _unescape(text: str, origin: str) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped.startswith("u"):
            if len(escaped) != 5:
                raise ConfigError(f"{origin}: \\{escaped} must have four hexadecimal digits after the u")
            return chr(int(escaped[1:], 16))
        return _ESCAPES.get(escaped, escaped)

    return _ESCAPED.sub(replace, text)
