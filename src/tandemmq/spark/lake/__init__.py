"""The lake: a directory of files that any reader may read while a query writes it."""
