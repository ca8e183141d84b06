"""Signatures, checked against frames signed by Java clients of both release lines, in both header forms."""

from __future__ import annotations

import pytest

from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.requests.consume import GetMaxOffsetRequest
from tandemmq.protocol.signature import (
    DIGEST_FIELD,
    SIGNATURE,
    Credentials,
    digest_of,
    signature_fault,
    signature_of,
    signed_text,
)

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
    assert signature_fault(command, SECRET) is None
    assert signature_fault(command, b"java-secreT") is not None
    changed = Command(code=105, version=command.version, extra_fields={**command.fields, "topic": "other"})
    assert signature_fault(changed, SECRET) is not None
    assert signature_fault(Command(code=105, extra_fields={"AccessKey": "java-user"}), SECRET) is not None


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_what_we_sign_is_what_arrives(serialize_type: int) -> None:
    header = GetMaxOffsetRequest(topic="T é漢", queue_id=1)
    empty = {"empty": ""}  # the binary form drops it
    command = Command.request(30, header, body=b"body", serialize_type=serialize_type, fields=empty)
    credentials = Credentials("user", "secret", "token")
    credentials.sign(command)
    credentials.sign(command)
    (arrived,) = FrameDecoder().feed(encode_frame(command))
    assert signature_fault(arrived, b"secret") is None
    assert arrived.decode(GetMaxOffsetRequest) == header
    assert "secret" not in repr(credentials)
    assert "token" not in repr(credentials)


def test_a_token_may_be_signed_or_not() -> None:
    fields = {"AccessKey": "user", "topic": "T", "SecurityToken": "token"}
    without_token = signature_of({"AccessKey": "user", "topic": "T"}, b"", SECRET)
    for signature in (signature_of(fields, b"", SECRET), without_token):
        command = Command(code=1, extra_fields={**fields, "Signature": signature})
        assert signature_fault(command, SECRET) is None


@pytest.mark.parametrize(("version", "is_part"), [(399, False), (401, True)])
def test_the_query_field_is_signed_from_4_9_4_on(version: int, is_part: bool) -> None:
    fields = {"AccessKey": "user", "topic": "T"}
    whole = {**fields, "_UNIQUE_KEY_QUERY": "true"}
    signature = signature_of(whole if is_part else fields, b"", SECRET)
    command = Command(code=12, version=version, extra_fields={**whole, "Signature": signature})
    assert signature_fault(command, SECRET) is None


def with_digest(code: int, fields: dict[str, str], body: bytes = b"") -> Command:
    command = Command(code=code, extra_fields=fields, body=body)
    Credentials("user", "secret").sign(command)
    return command


def test_a_request_with_a_digest_is_no_other_request() -> None:
    """Neither with another code, nor with other names or borders, nor without the digest or the body."""
    fields = dict(with_digest(351, {"topic": "Orders", "x": "1"}, b"body").fields)
    text = signed_text(fields, b"body").decode()
    assert signature_fault(Command(code=351, extra_fields=fields, body=b"body"), b"secret") is None
    bare = {name: value for name, value in fields.items() if name != DIGEST_FIELD}
    rest = text.removeprefix(fields[DIGEST_FIELD] + "user")
    forged = [
        (215, fields, b"body"),
        (351, {**fields, DIGEST_FIELD: digest_of(351, {**fields, "x": "1body"}), "x": "1body"}, b""),
        (351, {**fields, "y": "body"}, b""),
        (351, {**bare, "topic": "Order", "x": "s1", DIGEST_FIELD: fields[DIGEST_FIELD]}, b"body"),
        (351, bare, b"body"),
        (
            351,
            {SIGNATURE: fields[SIGNATURE], "A": fields[DIGEST_FIELD], "AccessKey": "user", "topic": rest},
            b"",
        ),
        (351, {SIGNATURE: fields[SIGNATURE], "AccessKey": "user"}, text.encode()),
        (351, {**fields, " ": ""}, b"body"),
        (351, {**fields, "x": "1body"}, b""),
    ]
    for code, names, body in forged:
        command = Command(code=code, extra_fields=names, body=body)
        for admits_weak in (True, False):
            assert signature_fault(command, b"secret", admits_weak=admits_weak) is not None, names


def test_the_weak_form_is_accepted_unless_it_is_switched_off() -> None:
    """RocketMQ's signed text can be turned into another request; the setting exists for that."""
    fields = {"AccessKey": "user", "topic": "Orders"}
    fields[SIGNATURE] = signature_of(fields, b"", b"secret")
    for code, name in ((351, "topic"), (215, "other")):
        names = {"AccessKey": "user", name: "Orders", SIGNATURE: fields[SIGNATURE]}
        if name == "other":
            names = {"AccessKey": "user", "ZZ": "Orders", SIGNATURE: fields[SIGNATURE]}
        command = Command(code=code, extra_fields=names)
        assert signature_fault(command, b"secret") is None
        assert "weakSignatureEnable" in (signature_fault(command, b"secret", admits_weak=False) or "")


def test_servers_without_digests_verify_the_digest_as_a_field() -> None:
    """Brokers of RocketMQ and of earlier releases."""
    command = with_digest(310, {"a": "PG", "b": "T"}, b"m")
    fields = dict(command.fields)
    given = fields.pop(SIGNATURE)
    values = "".join(fields[name] for name in sorted(fields))
    assert values.startswith(fields[DIGEST_FIELD])
    assert signature_of(fields, b"m", b"secret") == given
