"""The sink: sends the rows of a DataFrame as messages."""
