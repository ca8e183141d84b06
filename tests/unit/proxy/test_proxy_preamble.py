"""The PROXY protocol: both versions, whole and in pieces, from trusted addresses only."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address

import pytest
from http2_client import Http2Client

from sim.memory import ManualClock, MemoryNetwork
from tandemmq.proxy.grpc_limits import GrpcLimits
from tandemmq.proxy.grpc_server import GrpcServer
from tandemmq.proxy.proxy_preamble import Preamble, read_preamble
from tandemmq.proxy.rpc import GrpcCall, Method
from tandemmq.runtime.ports import Address
from tandemmq.telemetry import events
from waits import until

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def block(source: str, port: int, *, command: int = 0x21, extra: bytes = b"") -> bytes:
    """Returns a preamble of version 2."""
    packed = ip_address(source).packed
    addresses = packed * 2 + port.to_bytes(2) + (8081).to_bytes(2) + extra
    family = 0x11 if len(packed) == 4 else 0x21
    return SIGNATURE + bytes((command, family)) + len(addresses).to_bytes(2) + addresses


VALID: list[tuple[bytes, Address | None]] = [
    (b"PROXY TCP4 10.1.2.3 10.9.9.9 4711 8081\r\n", ("10.1.2.3", 4711)),
    (b"PROXY TCP6 fe80::1 ::1 1 8081\r\n", ("fe80::1", 1)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN a b c d\r\n", None),
    (block("10.1.2.3", 4711), ("10.1.2.3", 4711)),
    (block("fe80::1", 65535, extra=b"\x03\0\4abcd"), ("fe80::1", 65535)),
    (block("10.1.2.3", 4711, command=0x20), None),
    (SIGNATURE + b"\x21\0\0\0", None),
]
BROKEN = [
    b"PROXY TCP4 10.1.2.3 10.9.9.9 4711\r\n",
    b"PROXY TCP9 10.1.2.3 10.9.9.9 4711 8081\r\n",
    b"PROXY TCP4 10.1.2.300 10.9.9.9 4711 8081\r\n",
    b"PROXY TCP4 10.1.2.3 10.9.9.9 x 8081\r\n",
    b"PROXY \xff\r\n",
    b"PROXY " + b"x" * 200,
    SIGNATURE + b"\x31\x11\0\x0c" + bytes(12),
    SIGNATURE + b"\x21\x11\0\x08" + bytes(8),
    SIGNATURE + b"\x21\x11\xff\xff",
]


@pytest.mark.parametrize(("data", "source"), VALID)
def test_a_preamble_is_read_once_it_is_whole(data: bytes, source: Address | None) -> None:
    for size in range(len(data)):
        assert read_preamble(data[:size]) is None
    assert read_preamble(data) == read_preamble(data + b"PRI") == Preamble(len(data), source)


@pytest.mark.parametrize("data", [b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01", b"\r\n\r\nx"])
def test_other_bytes_are_no_preamble(data: bytes) -> None:
    assert read_preamble(data) == Preamble(0)


@pytest.mark.parametrize("data", BROKEN)
def test_a_broken_preamble_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_preamble(data)


async def peer_of_call(balancers: list[str], preamble: bytes, pieces: int = 1) -> str:
    """Returns the peer that a handler sees."""

    async def show_peer(call: GrpcCall) -> None:
        await call.send(call.peer[0].encode())

    clock = ManualClock()
    network = MemoryNetwork(clock, host="192.0.2.1")
    methods = [Method("/t.T/Peer", show_peer)]
    server = GrpcServer(network, clock, methods=methods, balancers=balancers)
    client = await Http2Client.connect(network, await server.start("host", 0), starts=False)
    try:
        step = max(1, len(preamble) // pieces)
        for at in range(0, len(preamble), step):
            client.write(preamble[at : at + step])
            await asyncio.sleep(0)
        client.begin()
        stream = client.call("/t.T/Peer")
        await client.ends(stream)
        return client.data[stream][5:].decode()
    finally:
        await server.stop()
        assert server.connection_count == 0


@pytest.mark.parametrize("pieces", [1, 2, 100])
@pytest.mark.parametrize(("preamble", "peer"), [*VALID, (b"", None)])
async def test_a_trusted_balancer_names_the_peer(preamble: bytes, peer: Address | None, pieces: int) -> None:
    expected = "192.0.2.1" if peer is None else peer[0]
    assert await peer_of_call(["192.0.2.1"], preamble, pieces) == expected


async def test_other_peers_need_none_and_may_send_none() -> None:
    assert await peer_of_call(["192.0.2.9"], b"") == "192.0.2.1"
    with pytest.raises(AssertionError, match="the connection was lost"):
        await peer_of_call(["192.0.2.9"], VALID[0][0])
    with pytest.raises(AssertionError, match="the connection was lost"):
        await peer_of_call([], VALID[0][0])


async def test_a_broken_or_endless_preamble_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    network = MemoryNetwork(clock)
    limits = GrpcLimits(preface_s=10)
    server = GrpcServer(network, clock, methods=[], limits=limits, balancers=["127.0.0.1"])
    address = await server.start("host", 0)
    broken, endless = [await Http2Client.connect(network, address, starts=False) for _ in range(2)]
    broken.write(BROKEN[0])
    await until(lambda: broken.is_lost)
    endless.write(VALID[0][0][:-1])
    await clock.pass_time(10.1)
    await until(lambda: endless.is_lost)
    await until(lambda: not server.connection_count)
    assert caplog.messages.count(events.GRPC_PREAMBLE_REFUSED) == 2
    waiting = await Http2Client.connect(network, address, starts=False)
    assert server.connection_count == 1
    await server.stop()
    await until(lambda: waiting.is_lost)
