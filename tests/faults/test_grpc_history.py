"""Tests that the judge of `make grpc ARGS=--chaos` finds each kind of fault."""

from __future__ import annotations

from grpc_history import AckEnd, Attempt, ChaosHistory, Delivery, attempt_of, verdict


def history() -> ChaosHistory:
    return ChaosHistory(fifo_topics=frozenset({"F"}))


def message(number: int, topic: str = "F", attempt: int = 0) -> Attempt:
    return Attempt(topic, "s", number, attempt)


def receive(run: ChaosHistory, *messages: Attempt, delivery_attempt: int = 1, offset: int = 0) -> None:
    run.record_receive("c", [Delivery(one, delivery_attempt, 0, offset + one.number) for one in messages])


def ack(run: ChaosHistory, one: Attempt, end: AckEnd = AckEnd.OK, *, is_elsewhere: bool = True) -> None:
    run.record_ack_begin(one)
    run.record_ack(one, end, is_elsewhere=is_elsewhere, is_early=True)


def consumed(run: ChaosHistory, *messages: Attempt) -> None:
    for one in messages:
        run.record_send(one)
        receive(run, one)
        ack(run, one)


def test_a_run_without_a_fault_passes() -> None:
    run = history()
    consumed(run, message(0), message(1), message(0, "N"))
    assert verdict(run) == (True, "GRPC CHAOS OK sent=3 lost=0 order=0 repeats_after_ack=0 acks_elsewhere=3")


def test_a_run_without_an_ack_at_another_proxy_fails() -> None:
    run = history()
    run.record_send(message(0))
    receive(run, message(0))
    ack(run, message(0), is_elsewhere=False)
    assert verdict(run)[0] is False


def test_a_fault_of_the_processes_fails_the_run() -> None:
    run = history()
    consumed(run, message(0))
    run.faults.append("not within 60 s: three in sync")
    assert verdict(run)[0] is False


def test_a_message_that_was_never_acknowledged_is_lost() -> None:
    run = history()
    consumed(run, message(0))
    run.record_send(message(1))
    run.record_send(message(2))
    receive(run, message(2))
    ack(run, message(2), AckEnd.INVALID)
    assert run.missing == [message(1), message(2)]
    assert verdict(run)[1].startswith("GRPC CHAOS FAILED sent=3 lost=2 ")


def test_a_refused_ack_ends_a_message_only_after_one_without_an_answer() -> None:
    run = history()
    run.record_send(message(0))
    receive(run, message(0))
    ack(run, message(0), AckEnd.UNKNOWN)
    assert run.missing == [message(0)]
    ack(run, message(0), AckEnd.INVALID)
    assert run.missing == []
    assert not run.refused_early
    assert run.repeats_after_ack == []


def test_a_message_that_is_acknowledged_before_its_send_is_answered_is_not_open() -> None:
    run = history()
    receive(run, message(0))
    ack(run, message(0))
    run.record_send(message(0))
    consumed(run, message(1))
    assert run.missing == []
    assert run.order == []


def test_a_swapped_order_is_found() -> None:
    run = history()
    for number in range(2):
        run.record_send(message(number))
    receive(run, message(1), message(0))
    assert len(run.order) == 1
    assert "order=1" in verdict(run)[1]


def test_a_message_delivered_while_another_consumer_has_the_one_before_it_is_found() -> None:
    run = history()
    for number in range(3):
        run.record_send(message(number))
    receive(run, message(0), message(1))
    receive(run, message(2))
    assert len(run.order) == 1
    receive(run, message(0), message(1), message(2))
    assert len(run.order) == 1, "a batch that comes again begins with the first open message"


def test_only_fifo_topics_and_single_message_groups_have_an_order() -> None:
    run = history()
    for one in (message(0, "N"), message(1, "N"), message(0), Attempt("F", "other", 1, 0)):
        run.record_send(one)
    receive(run, message(1, "N"))
    receive(run, message(0, "N"))
    receive(run, Attempt("F", "other", 1, 0))
    receive(run, message(0))
    assert run.order == []


def test_a_delivery_after_an_accepted_ack_is_found() -> None:
    run = history()
    consumed(run, message(0, "N"))
    receive(run, message(0, "N"))
    receive(run, message(0, "N"), delivery_attempt=2, offset=40)
    assert len(run.repeats_after_ack) == 2
    assert "repeats_after_ack=2" in verdict(run)[1]


def test_a_delivery_without_an_accepted_ack_may_be_repeated() -> None:
    run = history()
    run.record_send(message(0, "N"))
    receive(run, message(0, "N"))
    ack(run, message(0, "N"), AckEnd.INVALID)
    receive(run, message(0, "N"), delivery_attempt=2, offset=40)
    ack(run, message(0, "N"))
    assert verdict(run)[0] is True
    assert (run.repeats, run.refused_early["N"]) == (1, 1)


def test_a_second_record_of_one_send_is_no_second_delivery() -> None:
    run = history()
    consumed(run, message(0, "N"))
    receive(run, message(0, "N"), offset=7)
    assert verdict(run)[0] is True
    assert (run.repeats, run.stored_twice) == (0, 1)


def test_a_body_names_its_attempt() -> None:
    one = Attempt("T", "T-3", 17, 2)
    assert attempt_of("T", one.body) == one
