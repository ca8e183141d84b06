"""Typed bodies of requests and responses, one file per capability (spec remoting 6 and 11)."""
