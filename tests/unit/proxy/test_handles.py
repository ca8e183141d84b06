"""Texts of receipt handles (spec proxy 5.12)."""

from __future__ import annotations

import pytest

from tandemmq.protocol.pop_receipts import Handle
from tandemmq.proxy.handles import HANDLE_CHARS_MAX, UNKNOWN, Receipt, parse_receipt
from tandemmq.proxy.statuses import Code, RpcRefused

HANDLE = Handle(7, 1_000, 500, 3, "0", "broker-a", 2, 9)


@pytest.mark.parametrize(
    ("receipt", "text"),
    [
        (Receipt(HANDLE), "7 1000 500 3 0 broker-a 2 9"),
        (Receipt(HANDLE, 77), "7 1000 500 3 0 broker-a 2 9 77"),
        (Receipt(HANDLE, 77, 10_000), "7 1000 500 3 0 broker-a 2 9 77 10000"),
    ],
)
def test_a_handle_has_the_fields_of_rocketmq_and_one_more_if_it_is_renewable(
    receipt: Receipt, text: str
) -> None:
    assert receipt.text == text
    assert parse_receipt(text) == receipt
    assert receipt.broker_text == "7 1000 500 3 0 broker-a 2 9"


def test_a_handle_expires_with_its_invisible_time_unless_it_is_renewable() -> None:
    Receipt(HANDLE, 77).check_alive(1_499)
    with pytest.raises(RpcRefused, match="expired 0 ms ago") as refused:
        Receipt(HANDLE, 77).check_alive(1_500)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE
    Receipt(HANDLE, 77, 10_000).check_alive(10_999)
    with pytest.raises(RpcRefused, match="expired"):
        Receipt(HANDLE, 77, 10_000).check_alive(11_000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 2 3",
        "7 1000 500 3 0 broker-a 2",
        "x 1000 500 3 0 broker-a 2 9 77",
        "7 -1 500 3 0 broker-a 2 9 77",
        "7 1000 500 3 0 broker-a 2147483648 9 77",
        "9223372036854775808 1000 500 3 0 broker-a 2 9 77",
        "7 1000 500 3 9 broker-a 2 9 77",
        "7 1000 500 3 0  2 9 77",
        "7 1000 500 3 0 broker-a 2 ²",
        "7" * (HANDLE_CHARS_MAX + 1),
        "7 1000 500 3 0 " + "b" * 400 + " 2 9 77",
    ],
)
def test_a_text_that_is_not_a_handle_is_refused(text: str) -> None:
    with pytest.raises(RpcRefused) as refused:
        parse_receipt(text)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize("extra", ["x", "-1", "", "1" * 19])
def test_an_unreadable_ninth_field_counts_as_none(extra: str) -> None:
    assert parse_receipt(f"7 1000 500 3 0 broker-a 2 9 {extra}").log_offset == UNKNOWN
