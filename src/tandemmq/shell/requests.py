"""`tandemmq request` sends a request and prints its reply; `tandemmq reply` answers requests."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Final

import typer
from msgspec import structs

from tandemmq.admin.options import grouped, option
from tandemmq.client import Consumer, Producer, ProducerOptions, ReceivedMessage
from tandemmq.errors import MessageIllegal, RequestRejected, RequestTimeout, TandemError
from tandemmq.manage.tools import open_tools, tools_options
from tandemmq.shell import session
from tandemmq.shell.positions import LAST, SECONDS
from tandemmq.shell.read import EndOptions, Tag, read_messages, reader_options
from tandemmq.shell.send import MessageOptions

GROUP: Final = "TANDEMMQ_REQUEST"


@grouped
def request(
    topic: session.Topic,
    text: Annotated[
        str, typer.Argument(help="The request.", metavar="TEXT", show_default="standard input")
    ] = "",
    namesrv: session.NameServers = "",
    timeout_s: Annotated[
        float, option("--timeout", "The time to wait for the reply: 5, 500ms, 2m."), SECONDS
    ] = 3.0,
    given: MessageOptions = MessageOptions(),  # frozen
    form: session.LineForm = session.PLAIN,
) -> None:
    """Send a request and print the reply; exit code 1 when none comes in time."""
    every = given.make(topic)
    servers = session.find_name_servers(namesrv)
    body = text.encode("utf-8", "surrogateescape") or sys.stdin.buffer.read()

    async def work() -> int:
        async with Producer(GROUP, servers, options=ProducerOptions(client=tools_options())) as producer:
            try:
                reply = await producer.request(structs.replace(every, body=body), timeout_s)
            except RequestTimeout as error:
                raise session.Explained(
                    f"{error}; is a consumer of {topic} running that replies, such as `tandemmq reply`?"
                ) from error
        session.write_messages([reply], form)
        return 0

    session.run(work)


@grouped
def reply(
    topic: session.Topic,
    group: session.Group,
    text: Annotated[str, typer.Argument(help="The reply to every request.", metavar="[TEXT]")] = "",
    namesrv: session.NameServers = "",
    command: Annotated[
        str, option("--exec", "Run this for each request: body in, reply out. Its failure skips the request.")
    ] = "",
    tag: Tag = "*",
    ends: EndOptions = EndOptions(),  # frozen
    form: session.LineForm = session.PLAIN,
) -> None:
    """Answer the requests that arrive, with a text or a command's output, and print them."""
    if bool(text) == bool(command):
        raise typer.BadParameter("give the reply, or --exec COMMAND that prints it")
    servers = session.find_name_servers(namesrv)

    async def work() -> int:
        async with open_tools(servers) as tools:
            await tools.cluster_admin.topic_route(topic)
        async with Consumer(group, servers, options=reader_options(LAST)) as consumer:
            consumer.subscribe(topic, tag)
            async for messages in read_messages(consumer, ends):
                for message in messages:
                    session.write_messages([message], form)
                    await _answer(consumer, message, text, command)
                    consumer.ack(message)
        return 0

    session.run(work)


async def _answer(consumer: Consumer, message: ReceivedMessage, text: str, command: str) -> None:
    """Answers one request. A message that cannot be answered is reported and skipped."""
    try:
        body = (
            await _run(command, bytes(message.body)) if command else text.encode("utf-8", "surrogateescape")
        )
        await consumer.reply(message, body)
    except (MessageIllegal, RequestRejected, CommandFailed) as error:
        session.note(f"{message.message_id} is not answered: {error}")


class CommandFailed(TandemError):
    """The user's command for a reply failed."""


async def _run(command: str, body: bytes) -> bytes:
    process = await asyncio.create_subprocess_shell(
        command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(body)
    if process.returncode:
        raise CommandFailed(f"{command}: exit code {process.returncode}")
    return output
