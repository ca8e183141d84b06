"""The health service and server reflection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from calls import FakeCall
from google.protobuf import descriptor_pb2, descriptor_pool

from tandemmq.proxy.rpc import GrpcFailure, GrpcStatus, Method, grpc_status_of
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.service_info import (
    MESSAGING,
    NOT_SERVING,
    SERVICE_UNKNOWN,
    SERVING,
    Health,
    health_methods,
    reflection_methods,
)
from tandemmq.proxy.statuses import RpcRefused
from waits import until

HealthRequest = message_class("HealthCheckRequest", "grpc.health.v1")
HealthResponse = message_class("HealthCheckResponse", "grpc.health.v1")
PACKAGES = ["grpc.reflection.v1", "grpc.reflection.v1alpha"]


def asking(service: str) -> FakeCall:
    return FakeCall([HealthRequest(service=service).SerializeToString()])


def statuses(call: FakeCall) -> list[int]:
    return [answer.status for answer in call.answers(HealthResponse)]


@pytest.mark.parametrize("service", ["", MESSAGING])
async def test_check_answers_the_present_state(service: str) -> None:
    health = Health()
    for is_serving, status in ((False, NOT_SERVING), (True, SERVING), (False, NOT_SERVING)):
        health.set_serving(is_serving)
        call = asking(service)
        await health.check(call)
        assert statuses(call) == [status]


async def test_check_of_an_unknown_service_is_not_found() -> None:
    with pytest.raises(GrpcFailure) as caught:
        await Health().check(asking("other"))
    assert caught.value.status is GrpcStatus.NOT_FOUND


async def test_watch_answers_each_change_until_the_proxy_stops() -> None:
    health, call, other = Health(), asking(""), asking("other")
    watching = [asyncio.ensure_future(health.watch(one)) for one in (call, other)]
    await until(lambda: statuses(call) == [NOT_SERVING])
    health.set_serving(True)
    health.set_serving(True)
    await until(lambda: statuses(call) == [NOT_SERVING, SERVING])
    health.set_serving(False)
    await asyncio.gather(*watching)
    assert statuses(call) == [NOT_SERVING, SERVING, NOT_SERVING]
    assert statuses(other) == [SERVICE_UNKNOWN]


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05a"])
async def test_a_request_that_cannot_be_decoded_is_refused(data: bytes) -> None:
    for method in [*health_methods(Health()), *reflection_methods()]:
        with pytest.raises(RpcRefused) as caught:
            await method.serve(FakeCall([data]))
        assert grpc_status_of(caught.value.code) is GrpcStatus.INVALID_ARGUMENT


def reflection(package: str) -> Method:
    return next(method for method in reflection_methods() if method.path.startswith(f"/{package}."))


async def reflect(package: str, **question: Any) -> Any:
    request = message_class("ServerReflectionRequest", package)(host="h", **question)
    call = FakeCall([request.SerializeToString()])
    await reflection(package).serve(call)
    (answer,) = call.answers(message_class("ServerReflectionResponse", package))
    assert answer.valid_host == "h"
    assert answer.original_request == request
    return answer


@pytest.mark.parametrize("package", PACKAGES)
async def test_reflection_lists_and_describes_the_services(package: str) -> None:
    answer = await reflect(package, list_services="")
    services = [service.name for service in answer.list_services_response.service]
    assert services == [MESSAGING, "grpc.health.v1.Health", *(f"{one}.ServerReflection" for one in PACKAGES)]
    for service in services:
        described = await reflect(package, file_containing_symbol=service)
        pool = descriptor_pool.DescriptorPool()
        files = described.file_descriptor_response.file_descriptor_proto
        for data in reversed(files):
            pool.AddSerializedFile(data)
        assert pool.FindServiceByName(service).methods
    name = descriptor_pb2.FileDescriptorProto.FromString(files[0]).name
    by_name = await reflect(package, file_by_filename=name)
    assert by_name.file_descriptor_response.file_descriptor_proto == files


async def test_reflection_knows_each_rpc_and_message() -> None:
    described = await reflect(PACKAGES[0], file_containing_symbol="apache.rocketmq.v2.SendMessageRequest")
    files = described.file_descriptor_response.file_descriptor_proto
    file = descriptor_pb2.FileDescriptorProto.FromString(files[0])
    rpcs = {method.name: method for method in file.service[0].method}
    assert len(rpcs) == 17
    assert rpcs["Telemetry"].client_streaming
    assert rpcs["ReceiveMessage"].server_streaming
    assert not rpcs["ReceiveMessage"].client_streaming


@pytest.mark.parametrize(
    "question",
    [
        {"file_containing_symbol": "no.Such"},
        {"file_containing_symbol": ""},
        {"file_by_filename": "none.proto"},
        {"all_extension_numbers_of_type": "apache.rocketmq.v2.Status"},
        {"file_containing_extension": {"containing_type": "x", "extension_number": 1}},
        {},
    ],
)
async def test_reflection_of_unknown_names_is_an_error_in_the_answer(question: dict[str, Any]) -> None:
    answer = await reflect(PACKAGES[0], **question)
    assert answer.error_response.error_code == GrpcStatus.NOT_FOUND
