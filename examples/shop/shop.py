"""A web shop with a transactional outbox: one transaction of the database stores an order and its event.

A relay publishes the events in their order and deletes each once a broker has stored it. So an order has its
event, also when the process dies or no broker answers; an event may come twice, with the same key.
Run it with `uvicorn shop:app`; NAMESRV names the name servers, and DATABASE the file.
"""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from pydantic import BaseModel, PositiveInt

from tandemmq.client import Message, Producer, ProducerOptions
from tandemmq.errors import TandemError

RETRY_S = 0.2
TABLES = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, item TEXT, quantity INTEGER);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER, body TEXT);
"""


class Order(BaseModel):
    item: str
    quantity: PositiveInt


class Shop:
    """The database, and the relay of its outbox to `topic`."""

    def __init__(self, database: str, topic: str) -> None:
        self._database = sqlite3.connect(database, check_same_thread=False)
        self._database.executescript(TABLES)
        self._topic = topic
        self._has_events = asyncio.Event()
        self._has_events.set()

    def add(self, order: Order) -> int:
        """Stores the order and its event; returns the number of the order."""
        with self._database as transaction:
            row = transaction.execute(
                "INSERT INTO orders (item, quantity) VALUES (?, ?)", (order.item, order.quantity)
            )
            number = row.lastrowid
            transaction.execute(
                "INSERT INTO outbox (number, body) VALUES (?, ?)", (number, order.model_dump_json())
            )
        self._has_events.set()
        return number

    async def relay(self, producer: Producer) -> None:
        """Publishes the events for ever."""
        while True:
            self._has_events.clear()
            events = self._database.execute("SELECT id, number, body FROM outbox ORDER BY id").fetchall()
            for event, number, body in events:
                queue = None
                while True:
                    try:
                        queue = queue or await producer.queue_for(self._topic, str(number))
                        message = Message(self._topic, body.encode(), keys=str(number))
                        await producer.send(message, queue=queue)
                        break
                    except TandemError:  # the event stays in the outbox
                        await asyncio.sleep(RETRY_S)
                with self._database as transaction:
                    transaction.execute("DELETE FROM outbox WHERE id = ?", (event,))
            await self._has_events.wait()

    def waiting(self) -> int:
        """Returns the number of events that are not published."""
        return self._database.execute("SELECT count(*) FROM outbox").fetchone()[0]

    def close(self) -> None:
        self._database.close()


def make_app(name_servers: str, database: str, topic: str = "Orders") -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.shop = shop = Shop(database, topic)
        async with Producer("shop", name_servers, options=ProducerOptions(timeout_s=2.0)) as producer:
            relay = asyncio.create_task(shop.relay(producer))
            yield
            relay.cancel()
            with suppress(asyncio.CancelledError):
                await relay
        shop.close()

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def place(order: Order) -> dict[str, int]:
        return {"number": app.state.shop.add(order)}

    @app.get("/outbox")
    async def count() -> dict[str, int]:
        return {"waiting": app.state.shop.waiting()}

    return app


app = make_app(os.environ.get("NAMESRV", "127.0.0.1:9876"), os.environ.get("DATABASE", "shop.db"))
