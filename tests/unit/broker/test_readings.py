"""The readings of a broker for RocketMQ's metrics."""

from __future__ import annotations

import pytest

from tandemmq.broker.readings import _delivery_labels, count_due

NOW_MS = 1_000_000


def test_waiting_messages_are_in_the_range_in_which_they_are_due() -> None:
    due = {NOW_MS - 1: 1, NOW_MS: 1, NOW_MS + 4_999: 1, NOW_MS + 5_000: 10, NOW_MS + 7_200_000: 6}
    assert count_due(due, NOW_MS) == [3, 10, 0, 0, 0, 6, 0, 0, 0]
    assert count_due({NOW_MS + 90_000_000: 2}, NOW_MS)[-1] == 2
    assert sum(count_due({}, NOW_MS)) == 0


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("T", ("T", "G", "false", "false")),
        ("%RETRY%G", ("%RETRY%G", "G", "true", "false")),
        ("%RETRY%G_T", ("T", "G", "true", "false")),
        ("%RETRY%G+T", ("T", "G", "true", "false")),
        ("SCHEDULE_TOPIC_XXXX", ("SCHEDULE_TOPIC_XXXX", "G", "false", "true")),
    ],
)
def test_labels_of_deliveries(topic: str, expected: tuple[str, ...]) -> None:
    assert _delivery_labels(f"{topic}@G") == expected
