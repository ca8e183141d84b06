"""What Spark tells a task of a streaming query about itself (spec spark SP-52)."""

BATCH_ID = "streaming.sql.batchId"
"""Repeats when a batch is replayed."""

QUERY_ID = "sql.streaming.queryId"
"""Fixed by the checkpoint."""
