"""The broker: admits requests, maintains its tables, and leaves the log to the store."""
