"""Finding single messages."""
