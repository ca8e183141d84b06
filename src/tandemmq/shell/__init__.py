"""The user's commands: a cluster on this machine, messages in and out, and diagnosis."""
