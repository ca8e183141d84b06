"""All errors that a caller may see, as one class tree; each class states its policy.

`retriable`: the same call may succeed later or on another broker. `refresh_route`: the caller's route is
outdated. `fatal`: the process can no longer be trusted and must stop. Outcomes that a caller branches on
(nothing new, offset moved) are enum values, not errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class TandemError(Exception):
    """The base of all errors that this package raises on purpose."""

    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False
    fatal: ClassVar[bool] = False


class ProtocolError(TandemError):
    """Bytes or calls that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """A value that the protocol layer cannot encode: a bug of the caller."""


class RemoteProtocolError(ProtocolError):
    """Bytes from the peer that cannot be decoded; the connection must be closed (spec remoting 1)."""


class RequestRejected(TandemError):
    """A request that was understood and rejected: `code` and `remark` are those of the response.

    The subclasses are the cases that callers distinguish; any other code is this class itself. The mapping
    between codes and classes is `tandemmq.protocol.rejections`.
    """

    code: int = 1  # SYSTEM_ERROR

    def __init__(self, remark: str, *, code: int | None = None) -> None:
        super().__init__(remark)
        self.remark = remark
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        # The code of a subclass adds nothing to its remark.
        is_known = type(self) is not RequestRejected and self.code == type(self).code
        return self.remark if is_known else f"{self.remark} (response code {self.code})"


class BadRequest(RequestRejected):
    """A field is missing, ill-typed or out of range; the remark names it and the allowed values."""


class QueueNotFound(BadRequest):
    """The topic no longer has this queue at the broker: the topic was created again, or reduced."""

    refresh_route = True


class MessageIllegal(RequestRejected):
    """The message can never be stored as it is: too large, invalid properties, invalid batch."""

    code = 13


class TopicNotFound(RequestRejected):
    """The topic does not exist and may not be created."""

    code = 17
    refresh_route = True


class GroupNotFound(RequestRejected):
    """The consumer group does not exist."""

    code = 26


class NotPermitted(RequestRejected):
    """The broker, topic or group does not allow this operation."""

    code = 16
    refresh_route = True


class ServiceNotAvailable(RequestRejected):
    """The store accepts no writes now: a slave, a full disk, a stopping broker."""

    code = 14
    retriable = True
    refresh_route = True


class Busy(RequestRejected):
    """The peer sheds load; wait and retry, or try another broker."""

    code = 2
    retriable = True


class NotServed(Busy):
    """The peer does not serve this request now: it is a slave, or has no room. Another broker may be the
    master.
    """

    refresh_route = True


class NotNameServer(RequestRejected):
    """The address given for a name server belongs to a broker or a controller."""

    code = 3


class OffsetOutOfRange(RequestRejected):
    """A queue offset outside [min, max]."""

    code = 21


class NotLeader(RequestRejected):
    """The controller is not the leader, and there may be none: look up the leader, then repeat the request
    there.
    """

    code = 2007
    retriable = True


class OutcomeUnknown(RequestRejected):
    """A controller's decision was not confirmed in time; the decision may still take effect."""

    retriable = True


class StoreError(TandemError):
    """The store cannot execute the operation."""


class Corrupt(StoreError):
    """Bytes on disk that the format does not allow."""

    def __init__(self, path: Path | str, offset: int, reason: str) -> None:
        super().__init__(f"{path} at byte {offset}: {reason}")
        self.path = Path(path)
        self.offset = offset
        self.reason = reason


class LogMissing(StoreError):
    """The queues exist, but the log that they point into is missing."""

    def __init__(self, log_directory: Path, queue_directory: Path) -> None:
        super().__init__(
            f"{log_directory} holds no log file, but {queue_directory} has queues that point into one: "
            f"put the log files back, or remove {queue_directory} to start without their messages"
        )


class DiskFull(StoreError):
    """The file system has no room; no part of the rejected append was kept."""

    retriable = True


class FlushFailed(StoreError):
    """An fsync failed: nothing in memory can be trusted any more; the broker must stop and recover."""

    fatal = True


class StoreLocked(StoreError):
    """Another process holds the store directory."""


class StoreClosed(StoreError):
    """The store is shut down. Nothing raises it after 0.1; it remains for programs that name it."""


class Truncated(StoreError):
    """The log was cut below the awaited offset. It remains like `StoreClosed`."""


class ReplicationError(TandemError):
    """A replica and its peer disagree."""


class StaleTerm(ReplicationError):
    """A new term is not above every term of this broker's log."""


class LogDiverged(ReplicationError):
    """The peer's bytes do not continue this broker's log."""


class ClientError(TandemError):
    """A call of the client library failed for a reason outside the broker's answer."""


class TopicExists(ClientError):
    """The topic to create exists with other settings; nothing was changed."""


class GroupExists(ClientError):
    """The consumer group to create exists with other settings; nothing was changed."""


class TopicHasUnread(ClientError):
    """The read queues to remove contain messages that a group has not consumed; the read queues stay."""


class PartlyChanged(ClientError):
    """A change failed at one or more of several brokers; the text names those that have changed, and the
    reasons of the others.
    """


class BrokersAway(ClientError):
    """A change was not begun, because brokers that it needs do not answer or have no master."""


class NoRoute(ClientError):
    """No name server knows a broker for the topic."""

    retriable = True
    refresh_route = True


class BrokerUnreachable(ClientError, ConnectionError):
    """The connection could not be made, or broke before the answer came."""

    retriable = True
    refresh_route = True


class RequestTimeout(ClientError, TimeoutError):
    """No answer within the deadline; the request may or may not have been executed."""

    retriable = True


class SendNotConfirmed(ClientError):
    """The message is stored on the master but was not flushed or replicated in time; `status` has the
    reason.
    """

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class ConfigError(TandemError):
    """A setting that is unknown, ill-typed or out of range; the text names it and the allowed values."""


def install_hint(*extras: str) -> str:
    """Returns the command that installs the package with these extras, for error texts."""
    package = f"'.[{','.join(extras)}]'" if extras else "."
    return f"run `pip install -c constraints.txt {package}` in a checkout of TandemMQ"
