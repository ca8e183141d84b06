"""Typed bodies of requests and responses, one file per capability (spec remoting 6 and 11).

Every body has a pair of pure functions, `encode_...` and `decode_...`. What is written is strict compact JSON
(except maps keyed by a message queue, which only FastJSON's own spelling can carry to every client); what
is read may be FastJSON's loose dialect. A body that cannot be read is a RemoteProtocolError.
"""

from tandemmq.protocol.bodies.codec import DataVersion, MessageQueue

__all__ = ["DataVersion", "MessageQueue"]
