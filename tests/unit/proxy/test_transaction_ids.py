"""Ids of transactions: every proxy reads what another one wrote, and refuses everything else."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.proxy.transaction_ids import TransactionId, parse_transaction_id, render_transaction_id

OFFSETS = st.integers(0, 10**18 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)


@given(NAMES, OFFSETS, OFFSETS, NAMES)
def test_id_round_trip(broker: str, half_offset: int, log_offset: int, key: str):
    transaction = TransactionId(broker, half_offset, log_offset, key)
    text = render_transaction_id(transaction)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert parse_transaction_id(text) == transaction


def test_id_is_stable_across_releases():
    text = render_transaction_id(TransactionId("broker-a", 3, 1234, "01AB"))
    assert text == "MQFicm9rZXItYQEzATEyMzQBMDFBQg"


GOOD = render_transaction_id(TransactionId("a", 1, 2, "k"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "01ACDE48001122334455667788990011AA",  # the unique key, as Java's proxy has it
        "7F000001000118B4AAC2088B3D280000",
        "not base64!",
        "\xe9\xe8",
        GOOD[:-2],
        "2" + GOOD,
        render_transaction_id(TransactionId("", 1, 2, "k")),
        render_transaction_id(TransactionId("a", 1, 2, "")),
        render_transaction_id(TransactionId("a", -1, 2, "k")),
        render_transaction_id(TransactionId("a", 1, 10**18, "k")),
        "A" * 1_000_000,
    ],
)
def test_foreign_id_is_refused(text: str):
    with pytest.raises(RpcRefused) as refused:
        parse_transaction_id(text)
    assert refused.value.code is Code.INVALID_TRANSACTION_ID
    assert len(str(refused.value)) < 300


@given(st.text(max_size=80))
def test_garbage_is_only_ever_refused(text: str):
    with suppress(RpcRefused):
        parse_transaction_id(text)
