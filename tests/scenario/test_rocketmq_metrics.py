"""The metrics of a broker with RocketMQ's names report what was done."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_rig import Peer, consumer, records_of, running_broker
from pop_rig import ack, pop
from prometheus_client.parser import text_string_to_metric_families
from test_broker_metrics import PROM, fetch
from transaction_rig import COMMIT, ROLLBACK, TransactionPeer

from tandemmq.broker.broker import Broker
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.requests.send import SendBackRequest
from tandemmq.protocol.sys_flag import PULL_SUBSCRIPTION, PULL_SUSPEND
from tandemmq.remoting import metrics_port
from waits import until

PREFIX = "rocketmq_"
COMMON = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}


@pytest.fixture(autouse=True)
def _every_scrape_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "RENDER_S_MIN", 0.0)


async def scrape(broker: Broker, *names: str) -> dict[tuple[str, str], float]:
    """Returns the series with these names, without prefix and common labels: (name, "label=value ...")."""
    status, body = await fetch(broker, "/metrics")
    assert status == 200, body
    found = {}
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            name = sample.name.removeprefix(PREFIX)
            if name in names:
                assert COMMON.items() <= sample.labels.items()
                labels = {key: value for key, value in sample.labels.items() if key not in COMMON}
                found[name, " ".join(f"{key}={value}" for key, value in labels.items())] = sample.value
    return found


async def test_messages_in_and_out_by_topic_and_group(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **PROM) as broker, Peer(broker) as peer:
        await peer.send_ok("T", b"12345")
        await peer.send_ok("T", b"in order", properties={"__SHARDINGKEY": "k"})
        batch = encode_batch([(0, b"a", b""), (0, b"b", b"")])
        await peer.send_ok("T", batch, is_batch=True)
        await peer.heartbeat("c1", consumer("CG", "T"))
        assert len(records_of(await peer.pull("T"))) == 4
        counts = await scrape(broker, "messages_in_total", "message_size_count", "messages_out_total")
        assert counts == {
            ("messages_in_total", "topic=T message_type=normal is_system=false"): 3,
            ("messages_in_total", "topic=T message_type=fifo is_system=false"): 1,
            ("message_size_count", "topic=T message_type=normal is_system=false"): 2,
            ("message_size_count", "topic=T message_type=fifo is_system=false"): 1,
            ("messages_out_total", "topic=T consumer_group=CG is_retry=false is_system=false"): 4,
        }
        sizes = await scrape(broker, "throughput_in_total", "message_size_sum", "throughput_out_total")
        stored = sum(value for (name, _), value in sizes.items() if name == "throughput_in_total")
        assert (
            stored
            == sizes["throughput_out_total", "topic=T consumer_group=CG is_retry=false is_system=false"]
        )
        assert broker.store is not None
        assert stored == broker.store.max_log_offset


async def test_a_delayed_message_is_counted_where_it_waits_and_where_it_arrives(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **PROM) as broker, Peer(broker) as peer:
        await peer.send_ok("T", properties={"DELAY": "1"})
        waits = ("messages_in_total", "topic=SCHEDULE_TOPIC_XXXX message_type=delay is_system=true")
        arrives = ("messages_in_total", "topic=T message_type=delay is_system=false")
        assert await scrape(broker, "messages_in_total") == {waits: 1}

        async def is_delivered() -> bool:
            return await scrape(broker, "messages_in_total") == {waits: 1, arrives: 1}

        await until(is_delivered)
        out = "topic=SCHEDULE_TOPIC_XXXX consumer_group=SCHEDULE_CONSUMER is_retry=false is_system=true"
        assert await scrape(broker, "messages_out_total") == {("messages_out_total", out): 1}


async def test_timer_messages_that_wait_are_counted_once_also_after_a_restart(tmp_path: Path) -> None:
    names = ("timing_messages", "timer_enqueue_total", "timer_dequeue_total", "timer_dequeue_lag")
    of_topic, medium = (
        "storage_type=local storage_medium=disk topic=T",
        "storage_type=local storage_medium=disk",
    )
    async with running_broker(tmp_path, **PROM) as broker, Peer(broker) as peer:
        await peer.send_ok("T", properties={"TIMER_DELAY_SEC": "3000"})
        await peer.send_ok("T", properties={"TIMER_DELAY_MS": "1"})

        async def is_delivered() -> bool:
            return await scrape(broker, *names) == {
                ("timer_dequeue_lag", medium): 1,
                ("timing_messages", of_topic): 1,
                ("timer_enqueue_total", of_topic): 2,
                ("timer_dequeue_total", of_topic): 1,
            }

        await until(is_delivered)
        snapshot = await scrape(broker, "timer_message_snapshot")
        assert {key[1].rpartition("=")[2] for key, count in snapshot.items() if count} == {"3600"}
        assert await scrape(broker, "delay_message_latency_seconds_count")
    async with running_broker(tmp_path, **PROM) as broker, Peer(broker) as peer:

        async def is_read() -> bool:
            return await scrape(broker, *names) == {
                ("timer_dequeue_lag", medium): 1,
                ("timing_messages", of_topic): 1,
            }

        await until(is_read)


async def test_transactions_that_are_open_stay_counted_after_a_restart(tmp_path: Path) -> None:
    names = ("half_messages", "commit_messages_total", "rollback_messages_total")
    async with running_broker(tmp_path, **PROM) as broker, TransactionPeer(broker) as peer:
        halves = [await peer.send_half() for _ in range(4)]
        await peer.end(halves[0], COMMIT)
        await peer.end(halves[1], ROLLBACK)
        assert await scrape(broker, *names, "finish_message_latency_milliseconds_count") == {
            ("half_messages", "topic=T1"): 2,
            ("commit_messages_total", "topic=T1"): 1,
            ("rollback_messages_total", "topic=T1"): 1,
            ("finish_message_latency_milliseconds_count", "topic=T1"): 1,
        }
    async with running_broker(tmp_path, **PROM) as broker, TransactionPeer(broker) as peer:

        async def are_found() -> bool:
            return await scrape(broker, *names) == {("half_messages", "topic=T1"): 2}

        await until(are_found)


async def test_pops_dead_letters_and_creations(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **PROM) as broker, Peer(broker) as peer:
        sent = await peer.send_ok("T", b"12345")
        header = SendBackRequest(log_offset=int(sent.message_id[-16:], 16), group="CG", delay_level=-1)
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == ResponseCode.SUCCESS
        [message] = await pop(peer, "T", "PG")
        group = "topic=T consumer_group="
        names = ("send_to_dlq_messages_total", "pop_revive_in_message_total", "pop_checkpoint_buffer_size")
        assert await scrape(broker, *names) == {
            ("send_to_dlq_messages_total", f"{group}CG is_system=false"): 1,
            ("pop_revive_in_message_total", f"{group}PG revive_message_type=CK put_status=PUT_OK"): 1,
            ("pop_checkpoint_buffer_size", ""): 1,
        }
        await ack(peer, message, "PG")
        assert (await scrape(broker, *names))["pop_checkpoint_buffer_size", ""] == 0


async def test_families_can_be_switched_off_and_series_are_limited(tmp_path: Path) -> None:
    flags = ("stats", "connection", "transaction", "store", "pop")
    settings = {f"{name}_metrics": False for name in flags}
    limited = running_broker(tmp_path, **PROM, **settings, metrics_series_max=2, metrics_per_queue=True)
    async with limited as broker, Peer(broker) as peer:
        for topic in ("A", "B", "C"):
            await peer.send_ok(topic)
        await peer.heartbeat("c1", consumer("CG", "A"))
        await peer.pull("A", sys_flag=0x4 | 0x1, committed_offset=0)
        _, text = await fetch(broker, "/metrics")
        names = {line.split("{")[0] for line in text.splitlines() if line.startswith("rocketmq_")}
        assert {"rocketmq_messages_in_total", "rocketmq_consumer_lag_messages"} <= names
        assert not [name for name in names if "storage" in name or "number" in name or "connections" in name]
        counts = await scrape(broker, "messages_in_total")
        assert {labels.partition(" ")[0] for _, labels in counts} == {"topic=A", "topic=B"}
        labels = 'cluster="DefaultCluster",broker="broker-a",topic="A",consumer_group="CG",queue_id="0"'
        assert f"tandemmq_consumer_queue_lag_messages{{{labels}}} 1.0" in text


async def test_load_storage_and_connections(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **PROM) as broker, Peer(broker) as peer:
        assert not await scrape(broker, "storage_message_reserve_time_milliseconds")
        await peer.send_ok("T", b"12345")
        await peer.heartbeat("c1", consumer("CG", "T"))
        medium = "storage_type=local storage_medium=disk"
        names = ("broker_permission", "storage_dispatch_behind_bytes", "consumer_connections")
        [client] = [key for key in await scrape(broker, *names) if key[0] == "consumer_connections"]
        assert client[1].startswith("consumer_group=CG language=")
        assert client[1].endswith(" consume_mode=push protocol_type=remoting is_system=false")
        assert await scrape(broker, *names) == {
            ("broker_permission", ""): 6,
            ("storage_dispatch_behind_bytes", medium): 0,
            client: 1,
        }
        assert await scrape(broker, "storage_message_reserve_time_milliseconds")


async def test_times_of_requests_by_codes_and_outcome(tmp_path: Path) -> None:
    name = "rpc_latency_milliseconds_count"

    async def counts(broker: Broker) -> dict[str, float]:
        found = await scrape(broker, name)
        return {labels.removeprefix("protocol_type=remoting "): count for (_, labels), count in found.items()}

    async with running_broker(tmp_path / "off", **PROM) as broker, Peer(broker) as peer:
        await peer.send_ok("T")
        assert not await counts(broker)
    async with running_broker(tmp_path / "on", **PROM, remoting_metrics=True) as broker, Peer(broker) as peer:
        await peer.send_ok("T", b"1")
        await peer.send_ok("T", b"2")
        await peer.heartbeat("c1", consumer("CG", "T"))
        assert len(records_of(await peer.pull("T"))) == 2
        assert len(await pop(peer, "T", count_max=1)) == 1
        assert (await peer.ask(RequestCode.QUERY_MESSAGE)).code != ResponseCode.SUCCESS
        assert (await peer.ask(29_999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        held = await peer.pull(
            "T", queue_offset=2, sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND, suspend_timeout_ms=100
        )
        assert held.code == ResponseCode.PULL_NOT_FOUND
        of_code = "is_long_polling=false result=success"
        found = await counts(broker)
        assert found["request_code=send_message_v2 response_code=success " + of_code] == 2
        assert found["request_code=heart_beat response_code=success " + of_code] == 1
        assert found["request_code=pull_message response_code=success " + of_code] == 1
        assert found["request_code=pop_message response_code=success " + of_code] == 1
        assert found["request_code=29999 response_code=request_code_not_supported " + of_code] == 1
        of_held = "request_code=pull_message response_code=pull_not_found is_long_polling=true result=success"
        assert found[of_held] == 1
        assert sum(found.values()) == 8
