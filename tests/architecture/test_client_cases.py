"""Every public call of the client has a case of `make client-both`, or a row that says why it has none.

A call is a method, property or option of a class in `tandemmq.client`, under the class that defines it. The
cases of tests/interop/test_interop_client*.py name their calls by `calls`, and use them by that name.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from tandemmq import client

INTEROP = Path(__file__).parents[1] / "interop"
OTHERS = {"otel.inject", "otel.traced", "otel.processing", "otel_instrumentor.TandemMQInstrumentor"}
"""Public names outside of the package's own (docs/public-api.md)."""

NO_CASE = {
    "each case opens and closes its clients by `async with`": """
        AdminClient.close start Client.close start Consumer.close start PopConsumer.close start
        Producer.close start PushConsumer.close start TransactionProducer.close start""",
    "parts of the library call it, and no page names it": """
        Client.instance ClientInstance.* PopConsumer.describe handle_broker_request
        ClientMetrics.add_consumer add_producer on_consume on_send SendSummary.must_stop note result
        ClientOptions.credentials ReceivedMessage.note_retry body_sys_flag""",
    "a fact of a stored message or of results, which many cases read": """
        Message.body topic properties flag ReceivedMessage.as_object born_at_ms keys message_id priority
        properties queue_id queue_offset retry_count stored_at_ms tags QueueRange.count SendResult.is_ok
        SendSummary.ok_count stored_count""",
    "computed here, no broker is asked: test_rebalance.py, test_serializers.py": """
        allocate_averagely Json.encode decode MsgPack.decode encode Serializer.decode encode""",
    "a bound, a period or a timeout of this process": """
        ClientOptions.call_timeout_s heartbeat_s route_refresh_s ConsumerOptions.cached_bytes_max
        cached_count_max commit_s pull_count_max pull_error_delay_s rebalance_s span_max suspend_s
        orderly_batch_count_max PushOptions.drain_s span_max worker_count orderly_suspend_s
        ProducerOptions.batch_bytes_max batch_count_max compress_from_bytes in_flight_bytes_max
        in_flight_count_max message_bytes_max retry_count_max retry_when_not_stored_ok timeout_s""",
    "needs a slave: tests/scenario/test_client_read_policy.py": """
        ConsumerOptions.read_from read_lag_count_max Message.wait_stored""",
    "needs accounts or certificates: tests/interop/test_interop_security.py, tests/scenario": """
        ClientOptions.access_key secret_key security_token tls TlsClientOptions.* AccessAdmin.*""",
    "a part of the client's id": """
        ClientOptions.client_ip instance_name unit_name""",
    "every client of a case has it": """
        ConsumerOptions.client PopOptions.client start_from ProducerOptions.client""",
    "the same spans and numbers go to other readers: test_client_metrics.py, test_otel_spans.py": """
        otel.inject processing traced ClientMetrics.observe""",
    "names the topic of a feature that has a case": """
        ProducerOptions.default_topic default_topic_queue_count trace_topic PushOptions.trace_topic""",
    "RocketMQ's brokers always do what this option asks for: tests/unit/client/test_offsets_start.py": """
        ConsumerOptions.zero_when_none_stored""",
    "counted here, at every broker alike: tests/scenario/test_client_orderly.py": """
        ConsumerOptions.orderly_retry_count_max""",
}
"""The reasons, each with its calls; a name without a class has the class of the name before."""


def public_calls() -> set[str]:
    found = set(OTHERS)
    for name in client.__all__:
        value = getattr(client, name)
        if not inspect.isclass(value):
            found.add(name)
        elif not (name.startswith("Blocking") or issubclass(value, BaseException | Enum)):
            found |= set(_members(value))
    return found


def _members(kind: type) -> Iterator[str]:
    """The methods and properties that classes of ours define, and the fields of options and of `Message`."""
    for owner in kind.__mro__:
        if not owner.__module__.startswith("tandemmq."):
            continue
        has_fields = owner.__name__.endswith("Options") or owner is client.Message
        fields = owner.__annotations__ if has_fields else {}
        for name, member in {**dict.fromkeys(fields), **vars(owner)}.items():
            is_call = name in fields or inspect.isfunction(member) or isinstance(member, property)
            if is_call and not name.startswith("_"):
                yield f"{owner.__name__}.{name}"


def reasoned_calls() -> Iterator[str]:
    for names in NO_CASE.values():
        owner = ""
        for name in names.split():
            if "." in name:
                owner = name.partition(".")[0]
                yield name
            else:
                yield f"{owner}.{name}" if owner else name


def named_calls() -> Iterator[tuple[str, str]]:
    """The calls that cases name, each with the source of the case."""
    for path in INTEROP.glob("test_interop_client*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "calls":
                    source = ast.get_source_segment(text, node) or ""
                    constants = (one.value for one in ast.walk(mark) if isinstance(one, ast.Constant))
                    yield from ((str(value), source) for value in constants)


def _matches(call: str, reasoned: set[str]) -> bool:
    return call in reasoned or f"{call.partition('.')[0]}.*" in reasoned


def test_each_public_call_has_a_case_or_a_reason() -> None:
    named, reasoned = {call for call, _ in named_calls()}, set(reasoned_calls())
    missing = [call for call in public_calls() - named if not _matches(call, reasoned)]
    assert sorted(missing) == [], "add a case with `calls` in tests/interop, or a row in NO_CASE"


def test_cases_use_the_calls_that_they_name() -> None:
    public = public_calls()
    assert sorted({call for call, _ in named_calls() if call not in public}) == []
    unused = [
        call
        for call, source in named_calls()
        if not re.search(rf"\b{re.escape(call.rpartition('.')[2])}\b", source)
    ]
    assert unused == []


def test_reasons_are_about_calls_that_exist_and_have_no_case() -> None:
    left = public_calls() - {call for call, _ in named_calls()}
    stale = [call for call in reasoned_calls() if not any(_matches(one, {call}) for one in left)]
    assert stale == []
