"""What producers, consumers and admin clients can be told; ranges are checked when the object is made.

The defaults are RocketMQ's (spec semantics 10.1, 25.1) where it has the setting; the others say their reason.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from tandemmq.client.consumer.rebalance import SERVER_STRATEGIES, Allocate, allocate_averagely
from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies.client import MessageModel
from tandemmq.protocol.compression import Compression
from tandemmq.protocol.signature import Credentials
from tandemmq.protocol.topic_names import TRACE_TOPIC, check_topic
from tandemmq.remoting.options import TlsClientOptions
from tandemmq.units import KIB, MIB

if TYPE_CHECKING:
    from tandemmq.client.tracing import ConsumeEvent, SendEvent
    from tandemmq.protocol.message import Message

__all__ = [
    "ClientOptions",
    "Compression",
    "ConsumerOptions",
    "MessageModel",
    "PopOptions",
    "ProducerOptions",
    "PushOptions",
    "ReadFrom",
    "ServerNames",
    "StartFrom",
    "parse_name_servers",
]


def _check(owner: object, *names: str, low: float, high: float) -> None:
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, int | float) or not low <= value <= high:
            raise ConfigError(f"{type(owner).__name__}.{name} = {value!r}: must be from {low:g} to {high:g}")


def _check_kind(owner: object, **kinds: type) -> None:
    for name, kind in kinds.items():
        value = getattr(owner, name)
        if not isinstance(value, kind):
            members = [f".{one.name}" for one in kind] if issubclass(kind, Enum) else [""]
            wanted = " or ".join(kind.__name__ + member for member in members)
            raise ConfigError(f"{type(owner).__name__}.{name} = {value!r}: must be {wanted}")


def _check_namespace(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, str) or re.fullmatch(r"[a-zA-Z0-9_-]*", value) is None:
            raise ConfigError(
                f"{type(owner).__name__}.{name} = {value!r}: must be of ASCII letters, digits, - and _"
            )


def _check_hook(owner: object, *names: str) -> None:
    """None or a plain function: what an async one returns would be thrown away."""
    for name in names:
        value = getattr(owner, name)
        if value is not None and (not callable(value) or inspect.iscoroutinefunction(value)):
            raise ConfigError(
                f"{type(owner).__name__}.{name} = {value!r}: must be a plain function, not an async one"
            )


class ReadFrom(Enum):
    """Which replica a consumer reads; see ConsumerOptions."""

    MASTER = "master"
    SUGGESTED = "suggested"
    PREFER_SLAVE = "prefer-slave"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What every client needs.

    client_ip       the address in the client id; None: the local address of the connection to the name server
    instance_name   the middle part of the client id; None: unique to this client
    call_timeout_s  for calls to name servers and for everything but sends and pulls
    access_key,     who signs every request; both or neither, see docs/security.md
    secret_key
    security_token  for temporary credentials
    tls             connections speak TLS, to name servers and brokers; None: in plain
    namespace       topics and groups are called `namespace%name` at the brokers, and `name` here; what the
                    brokers or other namespaces have keeps its name. Producers and consumers do so; Admin
                    takes full names
    namespace_v2    RocketMQ 5's other kind: requests name it, and the servers must know what it means
    """

    client_ip: str | None = None
    instance_name: str | None = None
    unit_name: str = ""
    route_refresh_s: float = 30.0
    heartbeat_s: float = 30.0
    call_timeout_s: float = 3.0
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    tls: TlsClientOptions | None = None
    namespace: str = ""
    namespace_v2: str = ""

    def __post_init__(self) -> None:
        _check_namespace(self, "namespace", "namespace_v2")
        if bool(self.access_key) != bool(self.secret_key):
            raise ConfigError("ClientOptions.access_key and secret_key belong together")
        if self.security_token and not self.access_key:
            raise ConfigError("ClientOptions.security_token needs access_key and secret_key")
        _check(self, "route_refresh_s", "heartbeat_s", low=0.05, high=3600)
        _check(self, "call_timeout_s", low=0.05, high=600)

    @property
    def credentials(self) -> Credentials | None:
        """What requests are signed with."""
        if not self.access_key:
            return None
        return Credentials(self.access_key, self.secret_key, self.security_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer sends.

    timeout_s                 one send with all its retries; above the 3 s that a synchronous master waits for
                              its slave, so that its answer arrives
    retry_count_max           further attempts after the first, on retriable errors, at another broker when
                              there is one
    retry_when_not_stored_ok  also retry FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE. The
                              message is stored then, so a retry makes a second copy
    compress_from_bytes       bodies of at least this size are compressed; 0: never
    compression               ZLIB, which every client can read; LZ4 and ZSTD, which need the extra `lz4` or
                              `zstd` here and at every consumer, and RocketMQ 5 in Java's
    message_bytes_max         of one body or one whole batch, before compression
    in_flight_count_max,      bounds of what is sent and not answered; at either bound a send waits
    in_flight_bytes_max
    batch_linger_ms           None: every send() is its own request. 0: sends of one turn of the event loop
                              share a request. Above: they are collected for that long. Each caller gets its
                              own result
    batch_bytes_max           a collected batch is sent at this size at the latest
    batch_count_max           or at this many messages
    before_send               called with each message in the context of who sends it, in the event loop; what
                              it returns is sent instead. An error that it raises is the sender's
    on_send                   called with a SendEvent when the outcome of a message is known, in the event
                              loop: it must not block
    trace                     write RocketMQ's message trace of all that is sent to `trace_topic`
    """

    client: ClientOptions = field(default_factory=ClientOptions)
    timeout_s: float = 5.0
    retry_count_max: int = 2
    retry_when_not_stored_ok: bool = False
    compress_from_bytes: int = 4 * KIB
    compression: Compression = Compression.ZLIB
    message_bytes_max: int = 4 * MIB
    in_flight_count_max: int = 8192
    in_flight_bytes_max: int = 64 * MIB
    batch_linger_ms: float | None = None
    batch_bytes_max: int = 128 * KIB
    batch_count_max: int = 1024
    before_send: Callable[[Message], Message] | None = None
    on_send: Callable[[SendEvent], object] | None = None
    trace: bool = False
    trace_topic: str = TRACE_TOPIC
    default_topic: str = "TBW102"
    default_topic_queue_count: int = 4

    def __post_init__(self) -> None:
        _check_kind(self, client=ClientOptions, compression=Compression)
        _check(self, "timeout_s", low=0.01, high=600)
        _check(self, "retry_count_max", low=0, high=100)
        _check(self, "compress_from_bytes", low=0, high=1 << 31)
        _check(self, "message_bytes_max", "batch_bytes_max", low=1, high=15 * MIB)
        _check(self, "in_flight_count_max", "in_flight_bytes_max", "batch_count_max", low=1, high=1 << 40)
        if self.batch_linger_ms is not None:
            _check(self, "batch_linger_ms", low=0, high=30_000)
        _check(self, "default_topic_queue_count", low=1, high=1024)
        _check_hook(self, "before_send", "on_send")
        check_topic(self.trace_topic)


ServerNames = str | Sequence[str]
"""`host:port;host:port`, or several such texts."""
NAME_SERVER_PORT: Final = 9876


class StartFrom(Enum):
    """Where a group without a committed offset begins in a queue."""

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    LAST = "CONSUME_FROM_LAST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a consumer reads.

    start_from              for queues in which the group has no committed offset yet; TIMESTAMP needs
                            start_time_ms
    auto_ack                True: a message is finished when the application asks for the next one (or the
                            next poll). False: it is finished by `ack`, in any order
    pull_count_max          messages asked for in one pull; the broker may give fewer
    cached_count_max        pulled and unfinished messages of one queue; at the bound its pulling waits
    cached_bytes_max        the same, bytes of all queues together
    span_max                pulling of a queue waits while its lowest unfinished message lies so far back;
                            None: only the count matters
    suspend_s               how long the broker may hold a pull that finds nothing
    commit_s                period of offset commits
    zero_when_none_stored   let the broker answer 0 for a group without offset while the queue's first
                            message is still in memory, whatever start_from says: RocketMQ's habit, off
                            because it is a surprise
    read_from               SUGGESTED: the replica that the broker names, as RocketMQ's clients do, and a
                            slave while the master is away. MASTER: only the master, nothing while it is away.
                            PREFER_SLAVE: a slave that serves reads (slaveReadEnable), else the master; at the
                            queue's end a slave does not hold a pull, so new messages may come 1 s later
    read_lag_count_max      with PREFER_SLAVE: a queue whose slave has this many messages less than the master
                            when we have read all that the slave has is read at the master for a while
    orderly                 the messages of a queue strictly one after the other: the queue is locked at its
                            master, and its next message is handed out when the one before is finished. What
                            fails is put back with `suspend`
    orderly_batch_count_max messages of a queue that are handed out together
    orderly_retry_count_max how often `suspend` puts a message back before it goes to the dead letters; -1:
                            for ever, so that nothing overtakes it
    allocate                how the members of a group share the queues of a topic; all need the same:
                            allocate_averagely, allocate_by_circle, AllocateByConsistentHash(), ... or a
                            function of your own
    server_assignment       brokers of RocketMQ 5 and ours say which queues are whose, by allocate_averagely
                            or allocate_by_circle: what `clientRebalance=false` is in Java. Older brokers do
                            not, then the members share as ever
    offsets_dir             where a broadcasting consumer keeps its offsets; None: ~/.rocketmq_offsets
    """

    client: ClientOptions = field(default_factory=ClientOptions)
    model: MessageModel = MessageModel.CLUSTERING
    start_from: StartFrom = StartFrom.LAST
    start_time_ms: int | None = None
    auto_ack: bool = True
    pull_count_max: int = 256
    cached_count_max: int = 4096
    cached_bytes_max: int = 64 * MIB
    suspend_s: float = 15.0
    pull_error_delay_s: float = 1.0
    commit_s: float = 5.0
    rebalance_s: float = 20.0
    retry_count_max: int = 16
    zero_when_none_stored: bool = False
    read_from: ReadFrom = ReadFrom.SUGGESTED
    read_lag_count_max: int = 1_000
    orderly: bool = False
    orderly_batch_count_max: int = 1
    orderly_retry_count_max: int = -1
    span_max: int | None = None
    allocate: Allocate = allocate_averagely
    server_assignment: bool = False
    offsets_dir: str | None = None

    def __post_init__(self) -> None:
        _check_kind(self, client=ClientOptions, model=MessageModel, start_from=StartFrom, read_from=ReadFrom)
        _check(self, "pull_count_max", low=1, high=1024)
        _check(self, "cached_count_max", low=1, high=1 << 20)
        _check(self, "cached_bytes_max", low=1, high=1 << 40)
        _check(self, "read_lag_count_max", low=0, high=1 << 40)
        _check(self, "suspend_s", low=0.0, high=60.0)
        _check(self, "commit_s", "rebalance_s", "pull_error_delay_s", low=0.01, high=3600)
        _check(self, "retry_count_max", "orderly_retry_count_max", low=-1, high=1 << 20)
        _check(self, "orderly_batch_count_max", low=1, high=1024)
        if not callable(self.allocate):
            raise ConfigError(f"ConsumerOptions.allocate = {self.allocate!r}: must be a function")
        if self.server_assignment and (self.orderly or self.model is not MessageModel.CLUSTERING):
            raise ConfigError(
                "ConsumerOptions.server_assignment: brokers assign queues of concurrent consumers of a"
                " clustering group only"
            )
        if self.server_assignment and all(self.allocate is not one for one in SERVER_STRATEGIES):
            raise ConfigError(
                f"ConsumerOptions.server_assignment with allocate = {self.allocate!r}: brokers know"
                " allocate_averagely and allocate_by_circle"
            )
        if self.span_max is not None:
            _check(self, "span_max", low=1, high=1 << 40)
        if self.start_from is StartFrom.TIMESTAMP and self.start_time_ms is None:
            raise ConfigError("ConsumerOptions.start_time_ms: needed with start_from = TIMESTAMP")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions(ConsumerOptions):
    """How a push consumer reads, and how its handler is called; `auto_ack` means nothing to it.

    worker_count        handlers that run at the same time: tasks for an async one, threads for a plain one
    consume_timeout_s   a message whose handler takes longer is handed back with delay level 3. An async
                        handler is cancelled then; a plain one goes on in its thread and counts no more.
                        None: never. An orderly handler has all the time it wants
    retry_delay_level   for messages that failed; 0: the broker chooses, longer each time; -1: at once to the
                        dead letters
    orderly_suspend_s   how long an orderly queue rests after a message failed
    on_consume          called with a ConsumeEvent when a handler is done, in the event loop: it must not
                        block
    trace               write RocketMQ's message trace of all that is handled to `trace_topic`
    drain_s             how long `close` waits for handlers that run
    """

    worker_count: int = 20
    consume_timeout_s: float | None = 900.0
    retry_delay_level: int = 0
    orderly_suspend_s: float = 1.0
    on_consume: Callable[[ConsumeEvent], object] | None = None
    trace: bool = False
    trace_topic: str = TRACE_TOPIC
    drain_s: float = 30.0
    span_max: int | None = 2_000

    def __post_init__(self) -> None:
        ConsumerOptions.__post_init__(self)
        _check(self, "worker_count", low=1, high=1000)
        if self.consume_timeout_s is not None:
            _check(self, "consume_timeout_s", low=0.01, high=86_400)
        _check(self, "retry_delay_level", low=-1, high=18)
        _check(self, "orderly_suspend_s", low=0.0, high=3600)
        _check(self, "drain_s", low=0.0, high=3600)
        _check_hook(self, "on_consume")
        check_topic(self.trace_topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class PopOptions:
    """How a pop consumer receives.

    start_from   FIRST or LAST, for queues that the group has never read
    invisible_s  how long nobody else of the group gets a message that was received
    """

    client: ClientOptions = field(default_factory=ClientOptions)
    start_from: StartFrom = StartFrom.LAST
    invisible_s: float = 60.0

    def __post_init__(self) -> None:
        _check_kind(self, client=ClientOptions, start_from=StartFrom)
        _check(self, "invisible_s", low=0.1, high=86_400)
        if self.start_from is StartFrom.TIMESTAMP:
            raise ConfigError("PopOptions.start_from = TIMESTAMP: brokers serve pops from FIRST or LAST only")


def parse_name_servers(servers: ServerNames) -> tuple[str, ...]:
    """The addresses of `host:port;host:port`, or of a sequence of such texts, in their order; a host without
    a port listens on 9876.

    Raises:  ConfigError naming the piece that is not an address, or if there is none.
    """
    texts = [servers] if isinstance(servers, str) else servers
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(
            f"name servers {servers!r}: must be a text like host:port;host:port or a sequence of such texts"
        )
    pieces = [piece.strip() for text in texts for piece in text.replace(",", ";").split(";")]
    addresses = [_with_port(piece.rpartition("://")[2]) for piece in pieces if piece]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(
                f"name server {address!r}: must be host or host:port; several are separated by ';'"
            )
    if not addresses:
        raise ConfigError("no name server given: expected host:port, several separated by ';'")
    return tuple(dict.fromkeys(addresses))


def _with_port(address: str) -> str:
    has_port = ":" in address.rpartition("]")[2]
    return address if has_port else f"{address}:{NAME_SERVER_PORT}"
