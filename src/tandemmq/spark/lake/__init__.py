"""The Parquet lake: a directory that any Parquet reader may read while a query writes it."""
