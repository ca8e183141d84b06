"""Every request code is listed, once, with headers that can be compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

import tandemmq
from compatibility import DIFFERENCES, render
from tandemmq.protocol.catalogue import CATALOGUE, NOT_OURS, RequestRow, ServingRole
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.header_codec import codec_of


@pytest.mark.parametrize("code", RequestCode)
def test_code_is_listed(code: RequestCode) -> None:
    assert code in CATALOGUE


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: entry.name)
def test_headers_compile_and_wire_names_are_unique(entry: RequestRow) -> None:
    for header_type in (entry.request, entry.response):
        if header_type is not None:
            codec_of(header_type)
            wire_names = header_type.__struct_encode_fields__
            assert len(set(wire_names)) == len(wire_names)


def test_roles() -> None:
    assert CATALOGUE[310].served_by is ServingRole.BROKER
    assert CATALOGUE[105].served_by is ServingRole.NAME_SERVER
    assert CATALOGUE[40].served_by is ServingRole.CLIENT
    assert CATALOGUE[40].is_oneway
    assert CATALOGUE[310].name == "SEND_MESSAGE_V2"


def test_page_of_compatibility_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs" / "compatibility.md"
    fresh = render()
    assert page.read_text(encoding="utf-8") == fresh, "run: python -m compatibility"
    for _, place in (difference for area in DIFFERENCES.values() for difference in area):
        assert (Path(tandemmq.__file__).parent / place).exists(), place


def test_unsupported_requests_have_one_of_the_decided_reasons() -> None:
    kinds = (
        *("static topics", "broker container", "class filters", "controller", "RocksDB", "a name only"),
        *("lite topics", "lists of deletions"),
    )
    assert all(reason.startswith(kinds) for _, reason in NOT_OURS.values())
    assert not NOT_OURS.keys() & {int(code) for code in RequestCode}
