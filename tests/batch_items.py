"""The messages of the body of a batch send, one by one; servers read them as columns."""

from __future__ import annotations

from typing import NamedTuple

from tandemmq.protocol.batch import split_columns
from tandemmq.units import Buffer


class BatchItem(NamedTuple):
    """One message of a batch; `body` is a view into the batch."""

    flag: int
    body: memoryview
    properties: bytes


def split_batch(batch: Buffer) -> list[BatchItem]:
    """Returns the messages of a batch body, in order. Raises as `split_columns`."""
    return list(map(BatchItem, *split_columns(batch)))
