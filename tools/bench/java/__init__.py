"""Our servers and Java RocketMQ's under the same loads, in turns."""
