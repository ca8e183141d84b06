"""Every request code is listed, once, with headers that can be compiled."""

from __future__ import annotations

import pytest

from tandemmq.protocol.catalogue import CATALOGUE, UNSUPPORTED, Entry, Role
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.header_codec import codec_of


@pytest.mark.parametrize("code", RequestCode)
def test_code_is_listed_or_has_a_reason(code: RequestCode) -> None:
    assert code in CATALOGUE or code in UNSUPPORTED
    assert UNSUPPORTED.get(code, "reason").strip()


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: entry.name)
def test_headers_compile_and_wire_names_are_unique(entry: Entry) -> None:
    for header_type in (entry.request, entry.response):
        if header_type is not None:
            codec_of(header_type)
            wire_names = header_type.__struct_encode_fields__
            assert len(set(wire_names)) == len(wire_names)


def test_roles() -> None:
    assert CATALOGUE[310].served_by is Role.BROKER
    assert CATALOGUE[105].served_by is Role.NAME_SERVER
    assert CATALOGUE[40].served_by is Role.CLIENT
    assert CATALOGUE[40].is_oneway
    assert CATALOGUE[310].name == "SEND_MESSAGE_V2"
