"""Reading of messages, and long polling."""
