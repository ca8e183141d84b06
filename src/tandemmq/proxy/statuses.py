"""Status codes of answers, and the code for each error.

Every failure of an rpc is an ordinary answer with a status (spec proxy 2.9); clients take a gRPC error for a
broken endpoint.

Source: spec proxy 2.8, 2.9.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tandemmq.errors import NoRoute, RequestRejected, RequestTimeout, TandemError, TopicNotFound
from tandemmq.protocol.codes import ResponseCode


class Code(IntEnum):
    """The codes that the proxy answers."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_ACCESS_POINT = 40001
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    INVALID_CLIENT_PROPERTIES = 40021
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    TOO_MANY_REQUESTS = 42900
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    UNSUPPORTED = 50500


class RpcRefused(TandemError):
    """A refusal of an rpc, answered with `code` and the text."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


def check_bound(code: Code, subject: str, count: int, count_max: int, unit: str) -> None:
    """Raises RpcRefused if the subject has more of this unit than is allowed."""
    if count > count_max:
        raise RpcRefused(code, f"{subject} has {count} {unit}, at most {count_max} are allowed")


_CODE_OF_RESPONSE: Final[dict[int, Code]] = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
}


def code_of(error: TandemError) -> Code:
    """Returns the code that answers an error of a handler."""
    if isinstance(error, RpcRefused):
        return error.code
    if isinstance(error, NoRoute | TopicNotFound):
        return Code.TOPIC_NOT_FOUND
    if isinstance(error, RequestTimeout):
        return Code.PROXY_TIMEOUT
    if isinstance(error, RequestRejected):
        return _CODE_OF_RESPONSE.get(error.code, Code.INTERNAL_SERVER_ERROR)
    return Code.INTERNAL_SERVER_ERROR
