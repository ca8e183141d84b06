"""Typed bodies of requests and responses, one file per capability (spec remoting 6 and 11).

`codec.encode_body` and `codec.decode_body` serve every shape; a body with a spelling of its own has a pair
of pure functions, `encode_...` and `decode_...`. Bodies are written as strict compact JSON, except maps keyed
by a message queue: only FastJSON's own spelling of those works for every client.
Bodies in FastJSON's loose dialect are read, too. An unreadable body is a RemoteProtocolError.
"""

from tandemmq.protocol.bodies.codec import DataVersion, MessageQueue

__all__ = ["DataVersion", "MessageQueue"]
