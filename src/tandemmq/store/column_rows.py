"""Some of the rows of record columns."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.record_scan import RecordColumns

_NAMES = tuple(field.name for field in fields(RecordColumns))


def take_rows(columns: RecordColumns, rows: slice | NDArray[np.int64]) -> RecordColumns:
    """The records at `rows`."""
    return RecordColumns(**{name: getattr(columns, name)[rows] for name in _NAMES})
