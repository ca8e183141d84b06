"""Command: one request or response of the remoting protocol, in typed form.

A received Command keeps its extFields as received JSON text and decodes them on demand: `decode` returns a
typed header, `fields` a map of texts. A Command to send has a typed header, extra fields, or both;
`frame.encode_frame` converts it to bytes. The connection that sends a request sets its opaque.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from tandemmq.errors import BadRequest, RemoteProtocolError
from tandemmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, OUR_LANGUAGE, OUR_VERSION, SERIALIZE_JSON
from tandemmq.protocol.header_codec import Header, Int32, Int64, codec_of
from tandemmq.protocol.loose_json import parse_text_map
from tandemmq.units import Buffer

__all__ = ["Buffer", "Command", "Header", "Int32", "Int64"]


H = TypeVar("H", bound=Header)


class Command(msgspec.Struct, gc=False):
    """The content of one frame; spec remoting 4."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: int = OUR_LANGUAGE
    version: int = OUR_VERSION
    remark: str | None = None
    serialize_type: int = SERIALIZE_JSON
    body: Buffer = b""
    header: Header | None = None
    extra_fields: Mapping[str, str] | None = None
    """The fields besides the header (to send), or the whole map once it was decoded (received)."""
    fields_json: bytes = b""
    """The text of extFields as received over JSON, not parsed yet; empty without fields."""

    @classmethod
    def request(
        cls,
        code: int,
        header: Header | None = None,
        *,
        body: Buffer = b"",
        remark: str | None = None,
        oneway: bool = False,
        serialize_type: int = SERIALIZE_JSON,
        fields: Mapping[str, str] | None = None,
    ) -> Command:
        """Returns a request to send; its opaque is set by the connection."""
        return cls(
            code=code,
            flag=FLAG_ONEWAY if oneway else 0,
            remark=remark,
            serialize_type=serialize_type,
            body=body,
            header=header,
            extra_fields=fields,
        )

    def reply(
        self,
        code: int = 0,
        header: Header | None = None,
        *,
        remark: str | None = None,
        body: Buffer = b"",
        fields: Mapping[str, str] | None = None,
    ) -> Command:
        """Returns the response to this request: same opaque, same header form (spec remoting 1 and 4)."""
        return Command(
            code,
            self.opaque,
            FLAG_RESPONSE,
            OUR_LANGUAGE,
            OUR_VERSION,
            remark,
            self.serialize_type,
            body,
            header,
            fields,
        )

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    @property
    def fields(self) -> Mapping[str, str]:
        """All fields by wire name, header and extra ones; decoded on first use.

        Raises:  RemoteProtocolError when the received text is not a map.
        """
        extra = self.extra_fields
        if self.header is not None:
            own = codec_of(type(self.header)).encode_map(self.header)
            return {**own, **extra} if extra else own
        if extra is None:
            extra = parse_text_map(self.fields_json) if self.fields_json else {}
            self.extra_fields = extra
        return extra

    def decode(self, header_type: type[H]) -> H:
        """Returns the fields as a typed header; unknown fields are ignored.

        Raises:  BadRequest naming the wire spelling of a field that is missing or ill-typed.
        """
        codec = codec_of(header_type)
        if self.fields_json:
            header = codec.decode_json(self.fields_json)
            if header is not None:
                return header
        elif isinstance(self.header, header_type):
            return self.header
        try:
            fields = self.fields
        except RemoteProtocolError as error:
            raise BadRequest(f"extFields cannot be read: {error}") from None
        return codec.decode_map(fields)
