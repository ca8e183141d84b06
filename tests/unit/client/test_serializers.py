"""Bodies as values, with the libraries that are installed."""

from __future__ import annotations

import pytest

from tandemmq.client.serializers import Json


def test_models_of_pydantic_validate_themselves() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Order", number=(int, pydantic.Field(gt=0)))
    orders = Json(model)
    assert orders.decode(orders.encode(model(number=3))).number == 3
    with pytest.raises(ValueError, match="greater than 0"):
        orders.decode(b'{"number": 0}')


def test_plain_types_are_values_too() -> None:
    assert Json(dict[str, int]).decode(b'{"a": 1}') == {"a": 1}
