"""An application with its tests. It needs TandemMQ and pytest (in a checkout:
`pip install -c constraints.txt . pytest`); the cluster runs inside pytest.
"""

import asyncio
import json

import pytest
from billing import Billing

from tandemmq.client import (
    BlockingAdmin,
    ConsumerOptions,
    Message,
    ProducerOptions,
    SendStatus,
    StartFrom,
)
from tandemmq.errors import TandemError
from tandemmq.testing import Cluster

AT_ONCE = ConsumerOptions(start_from=StartFrom.FIRST, auto_ack=False)


def order(number, cents=100):
    return json.dumps({"number": number, "cents": cents}).encode()


@pytest.fixture
def invoices(tandemmq_cluster, topic):
    name = f"{topic}-invoices"
    tandemmq_cluster.create_topic(name)
    return name


@pytest.fixture
def orders(tandemmq_cluster, topic):
    with tandemmq_cluster.consumer(topic, f"billing-{topic}", options=AT_ONCE) as consumer:
        yield consumer


def test_each_order_is_charged_once(tandemmq_cluster, topic, producer, orders, invoices):
    producer.send_batch([Message(topic=topic, body=order(number)) for number in (1, 2, 3, 2)])
    billing = Billing(producer, invoices)
    billing.work(orders, 3)
    assert billing.charged == {"1": 100, "2": 100, "3": 100}
    with tandemmq_cluster.consumer(invoices) as accounting:
        written = [json.loads(next(accounting).body)["order"] for _ in range(3)]
    assert sorted(written) == ["1", "2", "3"]


def test_what_is_no_order_goes_to_the_dead_letters(tandemmq_cluster, topic, producer, orders, invoices):
    # One queue keeps its order: when the second one is charged, the first one was handled.
    queue = producer.queue_for(topic, "customer 7")
    producer.send_batch([Message(topic=topic, body=body) for body in (b"nonsense", order(1))], queue=queue)
    Billing(producer, invoices).work(orders, 1)
    with BlockingAdmin(tandemmq_cluster.name_servers) as admin:
        assert admin.message_count(f"%DLQ%billing-{topic}") == 1


def test_a_full_disk_charges_nobody(tandemmq_cluster, invoices):
    with tandemmq_cluster.producer(options=ProducerOptions(timeout_s=0.3)) as hasty:
        billing = Billing(hasty, invoices)
        tandemmq_cluster.fill_disk()
        with pytest.raises(TandemError):
            billing.handle(order(1))
        assert billing.charged == {}
        tandemmq_cluster.free_disk()
        billing.handle(order(1))
        assert billing.charged == {"1": 100}


def test_work_goes_on_when_the_master_is_back(tandemmq_cluster, topic, producer, orders, invoices):
    producer.send_batch([Message(topic=topic, body=order(number)) for number in range(5)])
    tandemmq_cluster.lose_master()
    hasty = tandemmq_cluster.producer(options=ProducerOptions(timeout_s=0.3))
    with hasty, pytest.raises(TandemError):
        Billing(hasty, invoices).work(orders, 5)  # read at the slave, but no broker accepts an invoice
    tandemmq_cluster.restart_master()
    billing = Billing(producer, invoices)
    with tandemmq_cluster.consumer(topic, f"billing-again-{topic}", options=AT_ONCE) as again:
        billing.work(again, 5)
    assert len(billing.charged) == 5


def test_with_asyncio():
    async def scenario():
        async with Cluster() as cluster, cluster.producer() as producer:
            result = await producer.send(Message(topic="Orders", body=order(1)))
            assert result.status is SendStatus.SEND_OK
            async with cluster.consumer("Orders") as consumer:
                async for message in consumer:
                    return json.loads(message.body)["number"]

    assert asyncio.run(scenario()) == 1
