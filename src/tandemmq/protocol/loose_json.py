"""Reads the JSON dialect that FastJSON writes and tolerates, where a strict parser fails (spec remoting 6).

Beyond strict JSON it accepts unquoted keys (integers, names), objects as keys, `$ref` to a value elsewhere,
single quotes, raw control characters in texts, trailing commas, and FastJSON's number suffixes and `Set[`
prefixes. An object used as a key becomes its own compact JSON text, the other spelling that Java accepts, so
that every result is plain dicts with text keys.

Strategy:   strict JSON is read in C, and so is a text whose only deviation is integer keys without quotes.
            The reader in Python handles the rest; it costs microseconds per value.
At a bound: that reader, and the expansion of `$ref`, count their work and give up at a `TextBound`. Depth is
            bounded as well. Anything unreadable is a RemoteProtocolError, nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from tandemmq.errors import RemoteProtocolError

DEPTH_MAX = 64
"""The maximum nesting; RocketMQ's own bodies nest less than ten deep."""


class TextBound(NamedTuple):
    """The limits for a text that is not strict JSON: characters, and steps of the reader (a value, a key, an
    escape each).
    """

    characters: int
    steps: int


HEADER_TEXT: Final = TextBound(262_144, 1_024)
"""The bound for a header, which has some thirty fields; a thousand steps take a few milliseconds."""
REQUEST_TEXT: Final = TextBound(262_144, 16_384)
"""The bound for the body of a request, which its sender may choose: some ten milliseconds."""
LARGE_TEXT: Final = TextBound(1 << 31, 1 << 23)
"""The bound for a file, or an answer to our own request: tables of RocketMQ's servers have a million rows."""

EXPANDED_MIN: Final = 1_024
"""The number of values that all `$ref` of a text may expand to, plus one for each character of the text."""

_SPACE = re.compile(r"[ \t\r\n\f\b\ufeff\x00]*")
_NUMBER = re.compile(r"([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[LlSsBbFfDd]?(?![\w.])")
_NAME = re.compile(r"[A-Za-z_$][\w$.\-]*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]|\[(?:\"([^\"]*)\"|'([^']*)')\]")
_ESCAPES = {
    "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0", "1": "\1", "2": "\2", "3":
    "\3", "4": "\4", "5": "\5", "6": "\6", "7": "\7",
}  # fmt: skip
_WORDS = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}
_DIGITS_MAX = 400
# A text, or an integer key without quotes. Possessive, so that no text causes backtracking.
_QUOTABLE = re.compile(r'"([^"\\]*+(?:\\.?[^"\\]*+)*+)(?:"|\Z)|(?<=[{,])(-?[0-9]+)(?=:)', re.DOTALL)
_STRICT = msgspec.json.Decoder()

_TEXT_MAP = msgspec.json.Decoder(dict[str, str])
_RAW_MAP = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)


def parse(text: str | bytes | bytearray | memoryview, bound: TextBound = REQUEST_TEXT) -> Any:
    """Returns the value of a strict or loose JSON text; object keys are always texts.

    Raises:  RemoteProtocolError with the position of the fault, or naming the bound exceeded by a text that
             is not strict JSON.
    """
    source = _decode_utf8(text)
    try:
        value, has_ref = _read_strict(source), '"$ref"' in source
        if value is _UNREAD:
            _require_short(source, bound)
            quoted = _QUOTABLE.sub(_QUOTED, source)
            if not quoted.endswith('"'):  # else an unterminated text was closed
                value = _read_strict(quoted)
        if value is _UNREAD:
            reader = _Reader(source, bound.steps)
            value, has_ref = reader.read_document(), reader.has_ref
        if not has_ref:
            return value
        _require_short(source, bound)
        return _Expander(value, EXPANDED_MIN + len(source)).expand(value, 0, ())
    except RecursionError:
        raise RemoteProtocolError("JSON is nested too deeply") from None


_UNREAD: Final = object()
_QUOTED: Final = r'"\1\2"'


def _read_strict(source: str) -> Any:
    """Returns the value; `_UNREAD` if the text is not strict JSON, or the reader would read it
    differently.
    """
    try:
        value = _STRICT.decode(source)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _UNREAD
    return value if source.count("[") + source.count("{") <= DEPTH_MAX or _is_shallow(value) else _UNREAD


def _is_shallow(value: Any) -> bool:
    """Returns True if a value is nested no deeper than DEPTH_MAX."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEPTH_MAX + 1):
        level = [
            item
            for one in level
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, dict | list)
        ]
        if not level:
            return True
    return False


def _require_short(source: str, bound: TextBound) -> None:
    if len(source) > bound.characters:
        raise RemoteProtocolError(
            f"a text of {len(source)} characters that is not strict JSON is rejected: at most"
            f" {bound.characters} are"
        )


def parse_text_map(text: bytes) -> dict[str, str]:
    """Returns the extFields of a header as texts.

    Numbers, booleans and nested values keep their JSON text; nulls are absent.

    Raises:  RemoteProtocolError when the text is not a JSON object.
    """
    try:
        return _TEXT_MAP.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        raw = {name: bytes(value) for name, value in _RAW_MAP.decode(text).items()}
        return {
            name: _TEXT.decode(value) if value.startswith(b'"') else value.decode()
            for name, value in raw.items()
            if value != b"null"
        }
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    value = parse(text, HEADER_TEXT)
    if not isinstance(value, dict):
        raise RemoteProtocolError("not a JSON object")
    return text_map(value)


def text_map(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns parsed values as header texts; nulls are left out."""
    return {
        name: value if isinstance(value, str) else render_value(value)
        for name, value in values.items()
        if value is not None
    }


def render_value(value: Any) -> str:
    """Returns a parsed value as compact JSON text."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _decode_utf8(text: str | bytes | bytearray | memoryview) -> str:
    if isinstance(text, str):
        return text
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"the text is not UTF-8: {error.reason} at byte {error.start}") from None


class _Reader:
    """A recursive-descent reader of one text; `_position` is the next character to read."""

    __slots__ = ("_position", "_steps_left", "_steps_max", "_text", "has_ref")

    def __init__(self, text: str, steps_max: int) -> None:
        self._text = text
        self._position = 0
        self._steps_left = self._steps_max = steps_max
        self.has_ref = False

    def read_document(self) -> Any:
        value = self._read_value(0)
        self._skip_space()
        if self._position != len(self._text):
            raise self._error("text after the value")
        return value

    def _read_value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._error(f"nested deeper than {DEPTH_MAX}")
        self._step()
        self._skip_space()
        start = self._text[self._position : self._position + 1]
        if start == "{":
            return self._read_object(depth)
        if start == "[":
            return self._read_array(depth)
        if start in _PLAIN:
            return self._read_text(start)
        number = _NUMBER.match(self._text, self._position)
        if number is not None:
            return self._read_number(number)
        return self._read_word(depth)

    def _read_object(self, depth: int) -> dict[str, Any]:
        self._position += 1
        values: dict[str, Any] = {}
        while not self._skip("}"):
            key = self._read_key(depth)
            if not self._skip(":"):
                raise self._error("':' expected")
            values[key] = self._read_value(depth + 1)
            self._skip_comma("}")
        if "$ref" in values:
            self.has_ref = True
        return values

    def _read_array(self, depth: int) -> list[Any]:
        self._position += 1
        values = []
        while not self._skip("]"):
            values.append(self._read_value(depth + 1))
            self._skip_comma("]")
        return values

    def _read_key(self, depth: int) -> str:
        self._step()
        start = self._text[self._position : self._position + 1]
        if start in _PLAIN:
            return self._read_text(start)
        if start in ("{", "["):
            return render_value(self._read_value(depth + 1))
        key = _NUMBER.match(self._text, self._position) or _NAME.match(self._text, self._position)
        if key is None:
            raise self._error("expected a key")
        self._position = key.end()
        return key.group(1) if key.re is _NUMBER else key.group()

    def _read_text(self, quote: str) -> str:
        """Reads a text in `quote`, with FastJSON's escapes; half surrogates become '?' as in Java's UTF-8."""
        text, plain = self._text, _PLAIN[quote]
        pieces: list[str] = []
        position = self._position + 1
        while True:
            match = plain.match(text, position)
            assert match is not None, "the pattern also matches nothing"
            pieces.append(match.group())
            position = match.end()
            if position >= len(text):
                raise self._error("unterminated string")
            if text[position] == quote:
                break
            piece, position = self._read_escape(position + 1)
            pieces.append(piece)
        self._position = position + 1
        joined = "".join(pieces)
        if not joined.isascii():
            # The first step joins pairs that came as two escapes, the second replaces lone surrogates.
            whole = joined.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
            joined = whole.encode("utf-8", "replace").decode()
        return joined

    def _read_escape(self, position: int) -> tuple[str, int]:
        self._step()
        letter = self._text[position : position + 1]
        size = {"u": 4, "x": 2}.get(letter, 0)
        if size:
            digits = self._text[position + 1 : position + 1 + size]
            if len(digits) != size or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise self._error("invalid escape")
            return chr(int(digits, 16)), position + 1 + size
        if letter == "":
            raise self._error("unterminated string")
        if letter not in _ESCAPES and letter not in "\"'/\\":
            raise self._error("unknown escape")
        return _ESCAPES.get(letter, letter), position + 1

    def _read_number(self, number: re.Match[str]) -> int | float:
        digits = number.group(1)
        if len(digits) > _DIGITS_MAX:
            raise self._error("number with too many digits")
        self._position = number.end()
        return float(digits) if any(mark in digits for mark in ".eE") else int(digits)

    def _read_word(self, depth: int) -> Any:
        word = _NAME.match(self._text, self._position)
        if word is None:
            raise self._error("expected a value")
        name = word.group()
        if name in _WORDS:
            self._position = word.end()
            return _WORDS[name]
        if name in ("Set", "TreeSet") and self._text.startswith("[", word.end()):
            self._position = word.end()
            return self._read_array(depth)
        raise self._error(f"the unknown word {name[:32]!r}")

    def _step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise self._error(
                f"more than {self._steps_max} keys, values and escapes in a text that is not strict JSON"
            )

    def _skip(self, mark: str) -> bool:
        self._skip_space()
        if self._text.startswith(mark, self._position):
            self._position += 1
            self._skip_space()
            return True
        return False

    def _skip_comma(self, closing: str) -> None:
        """Skips a comma, required between values and allowed after the last."""
        if not self._skip(",") and not self._text.startswith(closing, self._position):
            raise self._error(f"',' or {closing!r} expected")

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._position)
        assert match is not None, "the pattern also matches nothing"
        self._position = match.end()

    def _error(self, reason: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"JSON cannot be read at character {self._position}: {reason}")


class _Expander:
    """Replaces `{"$ref":path}` by copies of the named values; a value that contains itself is refused."""

    __slots__ = ("_nodes_left", "_root")

    def __init__(self, root: Any, nodes_max: int) -> None:
        self._root = root
        self._nodes_left = nodes_max

    def expand(self, value: Any, depth: int, parents: tuple[Any, ...]) -> Any:
        self._nodes_left -= 1
        if depth > DEPTH_MAX or self._nodes_left < 0:
            raise RemoteProtocolError("JSON references expand without end")
        if isinstance(value, list):
            parents = (*parents, value)
            return [self.expand(item, depth + 1, parents) for item in value]
        if not isinstance(value, dict):
            return value
        path = value.get("$ref")
        if isinstance(path, str) and len(value) == 1:
            return self.expand(self._find(path, parents), depth + 1, parents)
        parents = (*parents, value)
        return {key: self.expand(item, depth + 1, parents) for key, item in value.items()}

    def _find(self, path: str, parents: tuple[Any, ...]) -> Any:
        if path == "..":
            # FastJSON's name for the object around the one that holds the reference.
            if len(parents) < 2:
                raise RemoteProtocolError("a JSON reference points above the root")
            return parents[-2]
        if not path.startswith("$"):
            raise RemoteProtocolError(f"the JSON reference {path[:64]!r} is unknown")
        value, position = self._root, 1
        while position < len(path):
            step = _PATH_STEP.match(path, position)
            if step is None:
                raise RemoteProtocolError(f"the JSON reference {path[:64]!r} cannot be read")
            self._nodes_left -= 1
            value = _count_step(value, step)
            position = step.end()
        return value


def _count_step(value: Any, step: re.Match[str]) -> Any:
    name, index, double_quoted, single_quoted = step.groups()
    if isinstance(value, list) and index is not None and len(index) < 10 and int(index) < len(value):
        return value[int(index)]
    key = next((part for part in (name, index, double_quoted, single_quoted) if part is not None), "")
    if isinstance(value, dict) and key in value:
        return value[key]
    raise RemoteProtocolError(f"a JSON reference names {key[:64]!r}, which does not exist")
