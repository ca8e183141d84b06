"""The broker: admits requests, keeps its tables, and leaves the log to the store."""
