"""Compares our servers and Java RocketMQ's under the same loads, alternately."""
