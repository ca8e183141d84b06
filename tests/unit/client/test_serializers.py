"""Bodies as values, with the libraries that are installed."""

from __future__ import annotations

import pytest

from tandemmq.client.serializers import Json, with_body
from tandemmq.errors import MessageIllegal
from tandemmq.protocol.message import Message


def test_models_of_pydantic_validate_themselves() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Order", number=(int, pydantic.Field(gt=0)))
    orders = Json(model)
    assert orders.decode(orders.encode(model(number=3))).number == 3
    with pytest.raises(ValueError, match="greater than 0"):
        orders.decode(b'{"number": 0}')


def test_plain_types_are_values_too() -> None:
    assert Json(dict[str, int]).decode(b'{"a": 1}') == {"a": 1}


def test_a_value_that_cannot_be_encoded_is_refused_with_the_kind_of_the_error() -> None:
    class Lookup:
        def encode(self, value: dict[str, str]) -> bytes:
            return value["body"].encode()

        def decode(self, body: bytes) -> dict[str, str]:
            return {"body": body.decode()}

    with pytest.raises(MessageIllegal, match="the value cannot be encoded: KeyError: 'body'"):
        with_body(Message(topic="T", value={}), Lookup())


def test_a_message_with_a_body_keeps_it() -> None:
    message = Message(topic="T", body=b"b", value=5)
    assert with_body(message, Json(int)) is message
