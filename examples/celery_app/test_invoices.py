"""Tests of a Celery application, with a worker in this process. They need TandemMQ with the extra celery, and
pytest.
"""

import invoices
import pytest
from celery.contrib.testing.worker import start_worker


@pytest.fixture(scope="session")
def tandemmq_options():
    return {"elected": True}


@pytest.fixture(scope="session")
def worker(tandemmq_cluster, tmp_path_factory):
    invoices.app.conf.update(
        broker_url=f"tandemmq://{tandemmq_cluster.name_servers}",
        result_backend=f"file://{tmp_path_factory.mktemp('results')}",
        # A task whose delivery was on its way from a master that died runs after this time.
        broker_transport_options={"visibility_timeout": 5},
    )
    with start_worker(invoices.app, perform_ping_check=False, pool="threads", concurrency=2):
        yield


@pytest.fixture(autouse=True)
def printer():
    invoices.printed.clear()
    invoices.busy_for.clear()


def test_a_day_is_closed(worker):
    assert invoices.close_day({1: 100, 2: 250, 3: 50}).get(timeout=60) == 400
    assert sorted(invoices.printed) == [1, 2, 3]


def test_a_busy_printer_is_asked_again(worker):
    invoices.busy_for.extend([1, 2])
    assert invoices.print_invoice.delay(4, 100).get(timeout=60) == 100
    assert invoices.printed == [4]


def test_a_day_is_closed_though_the_master_dies(worker, tandemmq_cluster):
    day = invoices.close_day(dict.fromkeys(range(20), 10))
    tandemmq_cluster.lose_master()
    assert day.get(timeout=60) == 200
