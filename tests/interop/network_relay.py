"""A gateway between networks: passes TCP connections on, as Docker's proxy or a load balancer does.

`python network_relay.py LISTEN=TARGET...`, each `host:port` or `[v6]:port`; prints READY. The target sees the
gateway's address, never the client's.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


def place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


async def listen(source: str, target: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*place(target))
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    await asyncio.start_server(serve, *place(source))


async def main(pairs: list[str]) -> None:
    for pair in pairs:
        await listen(*pair.split("="))
    print("READY", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
