"""Hashes as a Java virtual machine computes them."""

from __future__ import annotations

import pytest

from tandemmq.protocol.hashes import java_hash, java_hashes, key_hash, key_head, tag_hash

KNOWN = [
    ("", 0),
    ("a", 97),
    ("TagA", 2598919),
    ("hello", 99162322),
    ("TopicTest#0A0000011F9018B4AAC2000000000001", -98296343),
    ("TopicTest#k1", 2746024),
    ("polygenelubricants", -(2**31)),
    ("é", 233),
    ("中文", 646394),
    ("😀", 0xD83D * 31 + 0xDE00),
    ("\ud83d", 0xD83D),
    ("\x00", 0),
]


@pytest.mark.parametrize(("text", "expected"), KNOWN)
def test_hash_of_a_string_is_javas(text: str, expected: int) -> None:
    assert java_hash(text) == tag_hash(text) == expected


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [
        ("TopicTest", "0A0000011F9018B4AAC2000000000001", 98296343),
        ("TopicTest", "k1", 2746024),
    ],
)
def test_key_hash_is_the_index_files(topic: str, key: str, expected: int) -> None:
    assert key_hash(topic, key) == expected


@pytest.mark.parametrize("key", ["", "k", "中😀", "x" * 5000, "0A0000011F9018B4AAC2000000000001"])
def test_key_hash_is_the_absolute_hash_of_the_whole_text(key: str) -> None:
    assert key_hash("TopicTest", key) == abs(java_hash("TopicTest#" + key))


def test_key_hash_of_the_lowest_integer_is_zero() -> None:
    # Found by search: a key for which hash("t#" + key) is -2^31, which has no positive twin.
    key = key_with_hash("t#", 1 << 31)
    assert java_hash("t#" + key) == -(2**31)
    assert key_hash("t", key) == 0


def key_with_hash(prefix: str, wanted: int) -> str:
    """Returns a key with the wanted hash: seven base-31 digits reach every 32-bit value."""
    rest = (wanted - (java_hash(prefix) * 31**7)) % 2**32
    digits = []
    for _ in range(7):
        rest, digit = divmod(rest, 31)
        digits.append(chr(digit))
    return "".join(reversed(digits))


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [""],
        ["", ""],
        [text for text, _ in KNOWN if text.isascii()],
        [text for text, _ in KNOWN],
        ["x" * 4096, "", "y"],
        ["x" * 5000, "z"],
    ],
)
def test_many_hashes_are_the_single_ones(texts: list[str]) -> None:
    assert java_hashes(texts).tolist() == [java_hash(text) for text in texts]
    topics = ["T" * (number % 3 + 1) for number in range(len(texts))]
    heads = [key_head(topic) for topic in topics]
    whole = [f"{topic}#{text}" for topic, text in zip(topics, texts, strict=True)]
    assert java_hashes(texts, heads).tolist() == [java_hash(text) for text in whole]
