"""The rows of a batch as changes of a table by key: the newest row of each key, and the deleted keys.

A message whose body is `null` or empty deletes its key; no client of RocketMQ sends an empty one. Of several
rows of one key in a batch the last one of its queue counts, of several queues the one that was stored last. A
later batch wins over an earlier one, so all messages of a key must be sent to the same queue. A batch that is
repeated makes the same changes again, so it is harmless even where its commit left no trace. Must not know
Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tandemmq.errors import ConfigError
from tandemmq.spark.columns import find_column
from tandemmq.spark.lake.data_files import DataFiles
from tandemmq.spark.lake.files import StagedFile
from tandemmq.spark.lake.parquet import TIME_COLUMN

DELETED = "_tandemmq_deleted"
NO_KEY = "no key"
_DELETING = (b"", b"null")
_QUEUE = ("brokerName", "queueId")
_NEEDED = ("body", *_QUEUE, "queueOffset", TIME_COLUMN)


def check_key(key: str, columns: Sequence[str]) -> None:
    """Raises ConfigError if rows with these columns cannot be changes by that key."""
    if find_column(key).types[0] != "string":
        raise ConfigError(f"key {key}: expected a column of texts, such as keys, tags or msgId")
    missing = [name for name in (key, *_NEEDED) if name not in columns]
    if missing:
        raise ConfigError(f"key {key}: the columns must include {', '.join(missing)}")


def find_keyless(keys: pa.Array) -> pa.Array:
    """Returns the reason for rows whose key is missing or empty, null for the others."""
    is_missing = pc.equal(pc.fill_null(keys.cast(pa.string()), ""), "")
    return pc.if_else(is_missing, NO_KEY, pa.scalar(None, pa.string()))


def read_changes(data: DataFiles, files: Sequence[StagedFile], key: str) -> pa.Table:
    """Returns the newest row of each key in the files, and, in the column `DELETED`, if it deletes its
    key.
    """
    tables = [pq.read_table(data.path(file.staged), filesystem=data.system) for file in files]
    rows = pa.concat_tables(tables).replace_schema_metadata()
    # Not by time alone: a new master's clock may be behind that of the old one.
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in (*_QUEUE, "queueOffset")])
    keys, times = rows.column(key).to_pylist(), rows.column(TIME_COLUMN).to_pylist()
    queues = list(zip(*(rows.column(name).to_pylist() for name in _QUEUE), strict=True))
    last = {(queues[at], keys[at]): at for at in order.to_pylist()}
    newest = {keys[at]: at for at in sorted(last.values(), key=times.__getitem__)}
    chosen = rows.take(pa.array(sorted(newest.values()), pa.int64()))
    bodies = pc.fill_null(chosen.column("body").cast(pa.binary()), b"")
    return chosen.append_column(DELETED, pc.is_in(bodies, pa.array(_DELETING)))
