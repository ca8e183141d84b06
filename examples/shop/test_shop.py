"""Tests of the web shop. They need TandemMQ, FastAPI, httpx and pytest."""

import json
import time

import pytest
from fastapi.testclient import TestClient
from shop import make_app


@pytest.fixture
def client(tandemmq_cluster, topic, tmp_path):
    with TestClient(make_app(tandemmq_cluster.name_servers, str(tmp_path / "shop.db"), topic)) as client:
        yield client


def wait_until_published(client):
    ends_at = time.monotonic() + 60
    while client.get("/outbox").json()["waiting"]:
        assert time.monotonic() < ends_at, "events stay in the outbox"
        time.sleep(0.05)


def test_an_order_has_its_event(client, topic, published):
    number = client.post("/orders", json={"item": "tea", "quantity": 2}).json()["number"]
    wait_until_published(client)
    (event,) = published(topic)
    assert event.keys == (str(number),)
    assert json.loads(event.body) == {"item": "tea", "quantity": 2}


def test_an_invalid_order_has_none(client, topic, published):
    assert client.post("/orders", json={"item": "tea", "quantity": 0}).status_code == 422
    assert client.get("/outbox").json() == {"waiting": 0}
    assert published(topic) == []


def test_orders_are_taken_while_no_broker_runs(client, tandemmq_cluster, topic, published):
    tandemmq_cluster.lose_master()
    for quantity in range(1, 6):
        assert client.post("/orders", json={"item": "tea", "quantity": quantity}).status_code == 201
    assert client.get("/outbox").json()["waiting"] >= 1
    tandemmq_cluster.restart_master()
    wait_until_published(client)
    assert sorted({json.loads(one.body)["quantity"] for one in published(topic)}) == [1, 2, 3, 4, 5]


def test_events_survive_a_restart_of_the_shop(tandemmq_cluster, topic, published, tmp_path):
    database = str(tmp_path / "shop.db")
    tandemmq_cluster.fill_disk()
    with TestClient(make_app(tandemmq_cluster.name_servers, database, topic)) as client:
        client.post("/orders", json={"item": "tea", "quantity": 1})
    tandemmq_cluster.free_disk()
    with TestClient(make_app(tandemmq_cluster.name_servers, database, topic)) as client:
        wait_until_published(client)
    assert [json.loads(one.body)["quantity"] for one in published(topic)] == [1]
