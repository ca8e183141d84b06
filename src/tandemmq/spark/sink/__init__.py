"""The sink: rows of a DataFrame become messages."""
