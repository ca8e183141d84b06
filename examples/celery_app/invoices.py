"""Invoices by Celery: a task that is retried while the printer is busy, and a chord that adds up a day.

Run a worker with `celery -A invoices worker`; NAMESRV names the name servers, and RESULTS the result backend.
"""

import os

from celery import Celery, chord

from tandemmq.integrations import kombu_transport


class PrinterBusy(Exception):
    """The printer takes no invoice now."""


kombu_transport.register()
app = Celery("invoices")
app.conf.update(
    broker_url=f"tandemmq://{os.environ.get('NAMESRV', '127.0.0.1:9876')}",
    result_backend=os.environ.get("RESULTS", "cache+memory://"),
    task_acks_late=True,  # a task of a worker that died runs elsewhere
    broker_transport_options={"visibility_timeout": 600},
)
printed: list[int] = []
busy_for: list[int] = []
"""The printer is busy as often as there are entries."""


@app.task(autoretry_for=(PrinterBusy,), retry_backoff=0.1, retry_jitter=False, max_retries=5)
def print_invoice(order: int, cents: int) -> int:
    """Prints the invoice once, also if the task comes twice; returns its amount."""
    if busy_for:
        raise PrinterBusy(busy_for.pop())
    if order not in printed:
        printed.append(order)
    return cents


@app.task
def add_up(amounts: list[int]) -> int:
    return sum(amounts)


def close_day(orders: dict[int, int]) -> object:
    """Prints all invoices of a day; the result is their sum."""
    return chord(print_invoice.s(order, cents) for order, cents in orders.items())(add_up.s())
