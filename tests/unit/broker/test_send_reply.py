"""The answer to a send: the fast encoding is a frame like any other, and every outcome has its code."""

from __future__ import annotations

import pytest

from tandemmq.broker.send.reply import ReplyForm, SendReply, ignore_outcome
from tandemmq.protocol.codes import SERIALIZE_JSON, SERIALIZE_ROCKETMQ
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.requests.send import SendResponse
from tandemmq.store.outcomes import Appended, PutStatus
from tandemmq.units import Buffer

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


class FakeChannel:
    def __init__(self) -> None:
        self.sent = b""

    def send(self, command: Command) -> None:
        self.sent += encode_frame(command)

    def send_frame(self, *buffers: Buffer) -> None:
        self.sent += b"".join(buffers)

    @property
    def command(self) -> Command:
        [command] = FrameDecoder().feed(self.sent)
        return command


def answer(
    status: PutStatus,
    *,
    serialize_type: int = SERIALIZE_JSON,
    unique_key: str = "AB" * 16,
    log_offsets: tuple[int, ...] = (1234,),
    region: str = "DefaultRegion",
) -> Command:
    channel = FakeChannel()
    reply = SendReply(
        ReplyForm(HOST, region, is_traced=True),
        channel,  # type: ignore[arg-type]  # the two calls that are used
        77,
        serialize_type,
        3,
        unique_key,
    )
    reply.appended = Appended(9, log_offsets, 2000, 1)
    reply.done(status)
    return channel.command


@pytest.mark.parametrize("unique_key", ["AB" * 16, 'quo"te\\', "naïve 中", "\x00"])
def test_fast_answer_says_the_same_as_the_general_one(unique_key: str) -> None:
    fast = answer(PutStatus.PUT_OK, unique_key=unique_key, region='R"1%d')
    general = answer(
        PutStatus.PUT_OK, unique_key=unique_key, region='R"1%d', serialize_type=SERIALIZE_ROCKETMQ
    )
    assert fast.decode(SendResponse) == general.decode(SendResponse)
    assert dict(fast.fields) == dict(general.fields)
    for command in (fast, general):
        assert (command.code, command.opaque, command.is_response, command.remark) == (0, 77, True, None)
    assert (fast.version, fast.language) == (general.version, general.language)
    assert fast.decode(SendResponse).message_id == "7F00000100002A9F00000000000004D2"


def test_batch_names_every_message() -> None:
    response = answer(PutStatus.PUT_OK, log_offsets=(1, 2)).decode(SendResponse)
    assert response.message_id.split(",") == [
        "7F00000100002A9F0000000000000001",
        "7F00000100002A9F0000000000000002",
    ]


def test_repeat_whose_record_is_gone_has_no_message_id() -> None:
    assert answer(PutStatus.PUT_OK, log_offsets=()).decode(SendResponse).message_id == ""


@pytest.mark.parametrize("host", [HOST, bytes(range(16)) + HOST[4:]])
def test_message_ids_are_the_host_and_each_log_offset(host: bytes) -> None:
    offsets = (0, 1, 2**40 + 0xABC, 2**63 - 1)
    form = ReplyForm(host, "R", is_traced=False)
    for count in range(1, 5):
        ids = form.message_ids(offsets[:count]).split(",")
        assert ids == [f"{host.hex().upper()}{offset:016X}" for offset in offsets[:count]]


@pytest.mark.parametrize(
    ("status", "code", "is_stored"),
    [
        (PutStatus.FLUSH_DISK_TIMEOUT, 10, True),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, 12, True),
        (PutStatus.SLAVE_NOT_AVAILABLE, 11, True),
        (PutStatus.SERVICE_NOT_AVAILABLE, 14, False),
        (PutStatus.UNKNOWN_ERROR, 1, False),
    ],
)
def test_every_outcome_has_its_code(status: PutStatus, code: int, is_stored: bool) -> None:
    command = answer(status)
    assert command.code == code
    assert ("msgId" in command.fields) == is_stored
    assert command.fields["MSG_REGION"] == "DefaultRegion"
    assert ("not stored" in (command.remark or "")) == (status is PutStatus.SERVICE_NOT_AVAILABLE)


def test_all_outcomes_are_covered() -> None:
    for status in PutStatus:
        assert answer(status).is_response
        ignore_outcome(status)
