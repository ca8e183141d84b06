"""The services about the proxy itself: `grpc.health.v1.Health`, and server reflection (`v1` and `v1alpha`),
with which tools such as grpcurl list the rpcs and build requests.

`Health` holds the state; the owner of the proxy sets it. Both services are optional (spec proxy 1.2), and no
client of RocketMQ calls them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from tandemmq.proxy.rpc import GrpcCall, GrpcFailure, GrpcStatus, Message, Method, parse, receive_one
from tandemmq.proxy.schema import PACKAGE, add_file, find_file, message_class
from tandemmq.remoting.health import Condition

_HEALTH: Final = "grpc.health.v1"
_REFLECTION: Final = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
MESSAGING: Final = f"{PACKAGE}.MessagingService"

add_file(
    "grpc/health/v1/health.proto",
    _HEALTH,
    {"HealthCheckRequest": "service 1 string", "HealthCheckResponse": "status 1 ServingStatus"},
    enums={"ServingStatus": "UNKNOWN 0, SERVING 1, NOT_SERVING 2, SERVICE_UNKNOWN 3"},
    services={
        "Health": "Check HealthCheckRequest HealthCheckResponse,"
        " Watch HealthCheckRequest *HealthCheckResponse"
    },
)
for _package in _REFLECTION:
    add_file(
        f"{_package.replace('.', '/')}/reflection.proto",
        _package,
        {
            "ExtensionRequest": "containing_type 1 string, extension_number 2 int32",
            "ServerReflectionRequest": "host 1 string, file_by_filename 3 string/message_request,"
            " file_containing_symbol 4 string/message_request,"
            " file_containing_extension 5 ExtensionRequest/message_request,"
            " all_extension_numbers_of_type 6 string/message_request, list_services 7 string/message_request",
            "FileDescriptorResponse": "file_descriptor_proto 1 *bytes",
            "ExtensionNumberResponse": "base_type_name 1 string, extension_number 2 *int32",
            "ServiceResponse": "name 1 string",
            "ListServiceResponse": "service 1 *ServiceResponse",
            "ErrorResponse": "error_code 1 int32, error_message 2 string",
            "ServerReflectionResponse": "valid_host 1 string, original_request 2 ServerReflectionRequest,"
            " file_descriptor_response 4 FileDescriptorResponse/message_response,"
            " all_extension_numbers_response 5 ExtensionNumberResponse/message_response,"
            " list_services_response 6 ListServiceResponse/message_response,"
            " error_response 7 ErrorResponse/message_response",
        },
        enums={},
        services={
            "ServerReflection": "ServerReflectionInfo *ServerReflectionRequest *ServerReflectionResponse"
        },
    )

_HealthRequest = message_class("HealthCheckRequest", _HEALTH)
_HealthResponse = message_class("HealthCheckResponse", _HEALTH)

SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3


class Health:
    """The health of the proxy: one state, for the whole server (the empty name) and for MessagingService."""

    def __init__(self) -> None:
        self._is_serving = False
        self._changed = asyncio.Event()

    @property
    def condition(self) -> Condition:
        return Condition("serving", "" if self._is_serving else "the proxy starts or stops")

    def set_serving(self, is_serving: bool) -> None:
        """Sets the state and notifies all watchers."""
        if is_serving != self._is_serving:
            self._is_serving = is_serving
            self._changed.set()
            self._changed = asyncio.Event()

    async def check(self, call: GrpcCall) -> None:
        """Answers with the present state; NOT_FOUND for an unknown service."""
        status = self._status(await receive_one(call, _HealthRequest))
        if status == SERVICE_UNKNOWN:
            raise GrpcFailure(
                GrpcStatus.NOT_FOUND, f"unknown service; known are {MESSAGING} and the empty name"
            )
        await call.send(_HealthResponse(status=status).SerializeToString())

    async def watch(self, call: GrpcCall) -> None:
        """Answers with the present state, and with each later one until the client ends the call, or the
        proxy stops, which waits for its calls.
        """
        request = await receive_one(call, _HealthRequest)
        sent, was_serving = None, False
        while True:
            changed, status, is_serving = self._changed, self._status(request), self._is_serving
            if status != sent:
                await call.send(_HealthResponse(status=status).SerializeToString())
                sent = status
            if was_serving and not is_serving:
                return
            was_serving = is_serving
            await changed.wait()

    def _status(self, request: Message) -> int:
        if request.service not in ("", MESSAGING):
            return SERVICE_UNKNOWN
        return SERVING if self._is_serving else NOT_SERVING


def health_methods(health: Health) -> list[Method]:
    """Returns the methods of the health service."""
    return [
        Method(f"/{_HEALTH}.Health/Check", health.check),
        Method(f"/{_HEALTH}.Health/Watch", health.watch, is_held=True),
    ]


def reflection_methods() -> list[Method]:
    """Returns the methods of both versions of server reflection."""
    services = [MESSAGING, f"{_HEALTH}.Health", *(f"{package}.ServerReflection" for package in _REFLECTION)]
    return [_reflection_method(package, services) for package in _REFLECTION]


def _reflection_method(package: str, services: Sequence[str]) -> Method:
    shape = message_class("ServerReflectionRequest", package)
    response = message_class("ServerReflectionResponse", package)

    async def serve(call: GrpcCall) -> None:
        while (data := await call.receive()) is not None:
            request = parse(shape, data)
            answer = response(
                valid_host=request.host, original_request=request, **_reflect(request, services)
            )
            await call.send(answer.SerializeToString())

    return Method(f"/{package}.ServerReflection/ServerReflectionInfo", serve, is_held=True)


def _reflect(request: Message, services: Sequence[str]) -> dict[str, Any]:
    """Returns the fields of the answer to one question."""
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        return {"list_services_response": {"service": [{"name": name} for name in services]}}
    if kind not in ("file_by_filename", "file_containing_symbol"):
        return _refuse(GrpcStatus.NOT_FOUND, "no message here has extensions")
    asked = getattr(request, kind)
    try:
        found = find_file(name=asked) if kind == "file_by_filename" else find_file(symbol=asked)
    except KeyError:
        return _refuse(GrpcStatus.NOT_FOUND, f"{asked[:200]!r} is unknown here")
    return {"file_descriptor_response": {"file_descriptor_proto": found}}


def _refuse(status: GrpcStatus, text: str) -> dict[str, Any]:
    return {"error_response": {"error_code": int(status), "error_message": text}}
