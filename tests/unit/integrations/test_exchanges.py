"""Exchanges and bindings of AMQP as topics, tags and groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.integrations.exchanges import Binding, ExchangeKind, Names, tag_of, tags_of
from tandemmq.protocol.topic_names import decode_name, encode_name, topic_fault


@given(st.text(min_size=1, max_size=10))
def test_every_name_has_a_topic_and_comes_back(name: str) -> None:
    assert topic_fault(encode_name(name)) == ""
    assert decode_name(encode_name(name)) == name


@given(st.text(max_size=20), st.text(max_size=20))
def test_different_names_have_different_topics(one: str, other: str) -> None:
    assert (encode_name(one) == encode_name(other)) == (one == other)


def test_names_without_special_characters_are_unchanged() -> None:
    assert encode_name("celery-high_1") == "celery-high_1"
    assert encode_name("orders.v1@eu") == "orders|2Ev1|40eu"
    assert decode_name("%RETRY%group") == "%RETRY%group"


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("task.#", ["task", "task.sent", "task.sent.eu"], ["tasks", "other.task"]),
        ("*.nl", ["eu.nl"], ["nl", "a.eu.nl", "eu.nlx"]),
        ("#", ["", "a", "a.b"], []),
        ("a.*.c", ["a.b.c"], ["a.c", "a.b.b.c", "a.b.cd"]),
        ("a.#.c", ["a.c", "a.b.c", "a.b.b.c"], ["ac", "a.b"]),
        ("#.end", ["end", "a.end", "a.b.end"], ["aend", "end.a"]),
        ("plain", ["plain"], ["plain.x", "xplain"]),
    ],
)
def test_keys_of_a_topic_exchange_match_by_words(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    binding = Binding("x", ExchangeKind.TOPIC, pattern)
    assert [key for key in matching + others if binding.matches(key)] == matching


def test_direct_and_fanout() -> None:
    assert Binding("x", ExchangeKind.FANOUT, "a").matches("b")
    direct = Binding("x", ExchangeKind.DIRECT, "a.b")
    assert direct.matches("a.b")
    assert not direct.matches("axb")


def test_brokers_filter_what_tags_can_tell() -> None:
    one, other = (Binding("x", ExchangeKind.DIRECT, key) for key in ("a.b", "c||d"))
    assert tags_of([one, other]) == f"{tag_of('a.b')}||{tag_of('c||d')}"
    assert "|" not in tag_of("c||d")
    assert tags_of([one, Binding("x", ExchangeKind.TOPIC, "c.*")]) == "*"


def test_a_queue_whose_group_would_be_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 120 characters"):
        Names().group("q" * 120)
    assert Names("shop").group("jobs.v1") == "shop-jobs|2Ev1"
    assert Names("shop").exchange_topic("") == "shop-exchange-default"
