"""Signatures against frames that Java clients of both lines signed, in both header forms."""

from __future__ import annotations

import pytest

from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.requests.consume import GetMaxOffsetRequest
from tandemmq.protocol.signature import Credentials, is_signed_with, signature_of

SECRET = b"java-secret"
JAVA_FRAMES = {
    "4.9 json": (
        "000000c7000000c37b22636f6465223a3130352c226578744669656c6473223a7b225369676e6174757265223a2230344d6b72"
        "4c51376e5856524f4e72436e4e78446b54566e682f673d222c22746f706963223a22544257313032222c224163636573734b65"
        "79223a226a6176612d75736572227d2c22666c6167223a302c226c616e6775616765223a224a415641222c226f706171756522"
        "3a302c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3430397d"
    ),
    "4.9 binary": (
        "0000006d0100006900690001990000000000000000000000000000005400095369676e61747572650000001c30344d6b724c51"
        "376e5856524f4e72436e4e78446b54566e682f673d0005746f7069630000000654425731303200094163636573734b65790000"
        "00096a6176612d75736572"
    ),
    "5.3 json": (
        "000000cd000000c97b22636f6465223a3130352c226578744669656c6473223a7b224163636573734b6579223a226a6176612d"
        "75736572222c22746f706963223a22766563746f722d746f706963222c225369676e6174757265223a22376e43313236313367"
        "63674979713664414b6e34666f77357352453d227d2c22666c6167223a302c226c616e6775616765223a224a415641222c226f"
        "7061717565223a302c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e22"
        "3a3437397d"
    ),
    "5.3 binary": (
        "000000730100006f00690001df0000000000000000000000000000005a00094163636573734b6579000000096a6176612d7573"
        "65720005746f7069630000000c766563746f722d746f70696300095369676e61747572650000001c376e433132363133676367"
        "4979713664414b6e34666f77357352453d"
    ),
}


@pytest.mark.parametrize("name", JAVA_FRAMES)
def test_frames_that_java_signed(name: str) -> None:
    (command,) = FrameDecoder().feed(bytes.fromhex(JAVA_FRAMES[name]))
    assert command.fields["AccessKey"] == "java-user"
    assert is_signed_with(command, SECRET)
    assert not is_signed_with(command, b"java-secreT")
    changed = Command(code=105, version=command.version, extra_fields={**command.fields, "topic": "other"})
    assert not is_signed_with(changed, SECRET)
    assert not is_signed_with(Command(code=105, extra_fields={"AccessKey": "java-user"}), SECRET)


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_what_we_sign_is_what_arrives(serialize_type: int) -> None:
    header = GetMaxOffsetRequest(topic="T é漢", queue_id=1)
    command = Command.request(30, header, body=b"body", serialize_type=serialize_type)
    credentials = Credentials("user", "secret", "token")
    credentials.sign(command)
    credentials.sign(command)
    (arrived,) = FrameDecoder().feed(encode_frame(command))
    assert is_signed_with(arrived, b"secret")
    assert arrived.decode(GetMaxOffsetRequest) == header
    assert "secret" not in repr(credentials)
    assert "token" not in repr(credentials)


def test_a_token_may_be_signed_or_not() -> None:
    fields = {"AccessKey": "user", "topic": "T", "SecurityToken": "token"}
    without_token = signature_of({"AccessKey": "user", "topic": "T"}, b"", SECRET)
    for signature in (signature_of(fields, b"", SECRET), without_token):
        assert is_signed_with(Command(code=1, extra_fields={**fields, "Signature": signature}), SECRET)


@pytest.mark.parametrize(("version", "is_part"), [(399, False), (401, True)])
def test_the_query_field_is_signed_from_4_9_4_on(version: int, is_part: bool) -> None:
    fields = {"AccessKey": "user", "topic": "T"}
    whole = {**fields, "_UNIQUE_KEY_QUERY": "true"}
    signature = signature_of(whole if is_part else fields, b"", SECRET)
    command = Command(code=12, version=version, extra_fields={**whole, "Signature": signature})
    assert is_signed_with(command, SECRET)
