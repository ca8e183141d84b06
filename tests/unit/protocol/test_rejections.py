"""Response codes and error classes, in both directions (spec remoting 10)."""

from __future__ import annotations

import pytest

from tandemmq.errors import BadRequest, Busy, NotServed, QueueNotFound, RequestRejected, TopicNotFound
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.rejections import CLASS_OF_CODE, to_error


@pytest.mark.parametrize("code", ResponseCode)
def test_code_and_remark_survive_both_ways(code: ResponseCode) -> None:
    error = to_error(Command(int(code), remark="because"))
    assert isinstance(error, RequestRejected)
    assert (error.code, error.remark) == (code, "because")


def test_the_text_of_an_error_shows_the_codes_that_no_class_stands_for() -> None:
    assert str(to_error(Command(17, remark="no such topic"))) == "no such topic"
    assert str(TopicNotFound("no such topic")) == "no such topic"
    assert str(to_error(Command(1, remark="odd"))) == "odd (response code 1)"
    assert str(to_error(Command(215, remark="too much"))) == "too much (response code 215)"


def test_classes() -> None:
    assert type(to_error(Command(17))) is TopicNotFound
    assert type(to_error(Command(2))) is Busy
    assert type(to_error(Command(215))) is Busy
    assert type(to_error(Command(2, remark="[OVERLOAD]too much"))) is Busy
    assert type(to_error(Command(2, remark="[REJECTREQUEST]system busy"))) is NotServed
    assert type(to_error(Command(1))) is RequestRejected
    assert type(to_error(Command(29, remark="perm 8 is outside 0..7"))) is BadRequest
    assert type(to_error(Command(-1004))) is RequestRejected


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (29, "queueId 7 is outside 0..1 of the topic T"),
        (29, "request queueId[7] is illegal, TopicConfig [topicName=T] Producer: /127.0.0.1:5"),
        (1, "queueId[7] is illegal, topic:[T] topicConfig.readQueueNums:[2] consumer:[/127.0.0.1:5]"),
    ],
)
def test_a_queue_that_is_gone_is_told_from_other_bad_requests(code: int, remark: str) -> None:
    error = to_error(Command(code, remark=remark))
    assert type(error) is QueueNotFound
    assert error.refresh_route
    assert error.code == code


def test_missing_remark_is_described() -> None:
    assert to_error(Command(17)).remark == "TOPIC_NOT_EXIST"
    assert "31999" in to_error(Command(31999)).remark


def test_our_own_errors_answer_with_their_class_code() -> None:
    assert [TopicNotFound("x").code, BadRequest("x").code, BadRequest("x", code=29).code] == [17, 1, 29]


@pytest.mark.parametrize("rejected", dict.fromkeys(CLASS_OF_CODE.values()), ids=lambda cls: cls.__name__)
def test_every_class_of_the_table_maps_back_to_itself(rejected: type[RequestRejected]) -> None:
    code = rejected.code if rejected is not BadRequest else 29
    assert CLASS_OF_CODE[code] is rejected
