"""Invoices for paid orders: reads `Orders`, writes `Invoices`, charges each order once.

Run it with `python billing.py 127.0.0.1:9876`.
"""

from __future__ import annotations

import json
import sys

from tandemmq.client import BlockingConsumer, BlockingProducer, ConsumerOptions, Message, StartFrom


class Billing:
    """What was charged is known by the order's number, so an order that comes twice is charged once."""

    def __init__(self, producer: BlockingProducer, invoices: str) -> None:
        self.charged: dict[str, int] = {}
        self._producer = producer
        self._invoices = invoices

    def handle(self, body: bytes) -> None:
        """Charge one order.

        Raises:  ValueError or KeyError for an invalid order; TandemError when the invoice cannot be sent.
        """
        order = json.loads(body)
        number, cents = str(order["number"]), int(order["cents"])
        if number in self.charged:
            return
        invoice = json.dumps({"order": number, "cents": cents}).encode()
        self._producer.send(Message(topic=self._invoices, body=invoice, keys=number))
        self.charged[number] = cents

    def work(self, consumer: BlockingConsumer, count: int) -> None:
        """Handle messages until `count` orders are charged; one that could not be charged comes again."""
        while len(self.charged) < count:
            for message in consumer.poll(count_max=32, timeout_s=1.0):
                try:
                    self.handle(message.body)
                except (ValueError, KeyError):
                    consumer.retry_later(message, delay_level=-1)  # to the dead letters, at once
                else:
                    consumer.ack(message)


def main(name_servers: str) -> None:
    options = ConsumerOptions(start_from=StartFrom.FIRST, auto_ack=False)
    consumer = BlockingConsumer("billing", name_servers, options=options)
    consumer.subscribe("Orders")
    with BlockingProducer("billing", name_servers) as producer, consumer:
        Billing(producer, "Invoices").work(consumer, sys.maxsize)


if __name__ == "__main__":
    main(sys.argv[1])
