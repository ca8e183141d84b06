"""The options of producers, consumers and admin clients; ranges are checked when the object is created.

The defaults are RocketMQ's (spec semantics 10.1, 25.1) where it has the setting; the other options state
their reason.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, TypedDict

from tandemmq.client.consumer.rebalance import SERVER_STRATEGIES, Allocate, allocate_averagely
from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies.client import MessageModel
from tandemmq.protocol.compression import Compression
from tandemmq.protocol.signature import Credentials
from tandemmq.protocol.topic_names import TRACE_TOPIC, check_topic
from tandemmq.remoting.options import TlsClientOptions
from tandemmq.units import KIB, MIB

if TYPE_CHECKING:
    from tandemmq.client.hooks import ConsumeEvent, HandleMiddleware, SendEvent, SendMiddleware
    from tandemmq.client.metrics import ClientMetrics
    from tandemmq.client.serializers import Serializer
    from tandemmq.protocol.bodies import MessageQueue
    from tandemmq.protocol.message import Message, ReceivedMessage


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
                f"{type(owner).__name__}.{name} = {value!r}: must consist of ASCII letters, digits, - and _"
            )


def _check_hook(owner: object, *names: str) -> None:
    """Accepts None or a plain function; the result of an async function would be discarded."""
    for name in names:
        value = getattr(owner, name)
        if value is not None and (not callable(value) or inspect.iscoroutinefunction(value)):
            raise ConfigError(
                f"{type(owner).__name__}.{name} = {value!r}: must be a plain function, not an async one"
            )


def _check_middleware(owner: ProducerOptions | PushOptions) -> None:
    _check_kind(owner, middleware=Sequence)
    for one in owner.middleware:
        if not callable(one):
            raise ConfigError(f"{type(owner).__name__}.middleware: {one!r:.64} must be an async function")


def _check_method(owner: object, name: str, method: str, wanted: str) -> None:
    """Accepts None or an object with the method."""
    found = getattr(owner, name)
    if found is not None and (isinstance(found, type) or not callable(getattr(found, method, None))):
        raise ConfigError(f"{type(owner).__name__}.{name} = {found!r}: must {wanted}")


class ReadFrom(Enum):
    """The replica that a consumer reads from; see ConsumerOptions."""

    MASTER = "master"
    SUGGESTED = "suggested"
    PREFER_SLAVE = "prefer-slave"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of every client.

    client_ip       the address in the client id; None: the local address of the connection to the name server
    instance_name   the middle part of the client id; None: unique to this client
    call_timeout_s  for calls to name servers and for everything except sends and pulls
    access_key,     the account that signs every request; both or neither, see docs/security.md
    secret_key
    security_token  for temporary credentials
    tls             use TLS for connections to name servers and brokers; None: plain text
    namespace       topics and groups are called `namespace%name` at the brokers, and `name` here; system
                    names and names of other namespaces stay the same. Producers and consumers translate
                    names; Admin expects full names
    namespace_v2    the newer kind, of RocketMQ 5: requests name it, and the servers must support it
    on_disconnected called with the address of a name server or broker to which the connection was lost, in
                    the event loop: it must not block
    on_reconnected  likewise, when it is connected again
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
    on_disconnected: Callable[[str], object] | None = None
    on_reconnected: Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        _check_hook(self, "on_disconnected", "on_reconnected")
        _check_namespace(self, "namespace", "namespace_v2")
        if self.tls is not None:
            _check_kind(self, tls=TlsClientOptions)
        if bool(self.access_key) != bool(self.secret_key):
            raise ConfigError("ClientOptions.access_key and secret_key must be given together")
        if self.security_token and not self.access_key:
            raise ConfigError("ClientOptions.security_token needs access_key and secret_key")
        _check(self, "route_refresh_s", "heartbeat_s", low=0.05, high=3600)
        _check(self, "call_timeout_s", low=0.05, high=600)

    @property
    def credentials(self) -> Credentials | None:
        """The credentials that sign requests; None without an access key."""
        if not self.access_key:
            return None
        return Credentials(self.access_key, self.secret_key, self.security_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The options of a producer.

    timeout_s                 limit of one send with all its retries; above the 3 s that a synchronous master
                              waits for its slave, so that its answer arrives
    retry_count_max           further attempts after the first, on retriable errors, at another broker if
                              there is one
    retry_when_not_stored_ok  also retry FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE. The
                              message is stored in these cases, so a retry makes a duplicate
    compress_from_bytes       bodies of at least this size are compressed; 0: never
    compression               ZLIB, which every client can read; LZ4 and ZSTD, which need the extra `lz4` or
                              `zstd` here and at every consumer, and RocketMQ 5 in Java's clients
    message_bytes_max         limit of one body or one whole batch, before compression
    in_flight_count_max,      bounds of the sends in flight; at either bound a send waits
    in_flight_bytes_max
    batch_linger_ms           None: every send() is its own request. 0: sends of one turn of the event loop
                              share a request. Above 0: sends are collected for that time. Each caller gets
                              its own result
    batch_bytes_max           a collected batch is sent at the latest when it has this size
    batch_count_max           or this many messages
    serializer                encodes the `value` of each message that has no body
    before_send               called with each message in the context of the sender, in the event loop; the
                              returned message is sent instead. An error that it raises is raised to the
                              sender
    middleware                async functions of the messages of a request and of `call_next`, through which
                              `send`, `send_batch` and their like are called, the first one first
    on_send                   called with a SendEvent when the outcome of a message is known, in the event
                              loop: it must not block
    metrics                   counts the sends of this producer
    trace                     write RocketMQ's message trace of every sent message to `trace_topic`
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
    serializer: Serializer | None = None
    before_send: Callable[[Message], Message] | None = None
    middleware: Sequence[SendMiddleware] = ()
    on_send: Callable[[SendEvent], object] | None = None
    metrics: ClientMetrics | None = None
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
        _check_method(self, "serializer", "encode", "have a method encode, such as Json(Order)")
        _check_hook(self, "before_send", "on_send")
        _check_middleware(self)
        _check_method(self, "metrics", "add_producer", "be ClientMetrics()")
        check_topic(self.trace_topic)


DELAY_S_MAX: Final = 3 * 86_400
"""The longest delay in seconds that a broker accepts by default (`timerMaxDelaySec`)."""

ServerNames = str | Sequence[str]
"""The name servers, as `host:port;host:port` or as a sequence of such texts."""
NAME_SERVER_PORT: Final = 9876


class StartFrom(Enum):
    """The start of a group without a committed offset in a queue."""

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    LAST = "CONSUME_FROM_LAST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """The options of a consumer.

    start_from              the start in queues without a committed offset of the group; TIMESTAMP needs
                            start_time_ms
    auto_ack                True: a message is acknowledged when the application asks for the next one (or the
                            next poll). False: the application calls `ack`, in any order
    pull_count_max          messages requested in one pull; the broker may return fewer
    cached_count_max        pulled and unacknowledged messages of one queue; at the bound its pulling pauses
    cached_bytes_max        the same bound in bytes, for all queues together
    span_max                pulling of a queue pauses while its lowest unacknowledged message is more than
                            this many offsets behind the next one to pull; None: only the count matters
    suspend_s               the time for which the broker may hold a pull that finds nothing
    commit_s                period of offset commits
    zero_when_none_stored   let the broker answer 0 for a group without an offset while the queue's first
                            message is still in memory, whatever start_from says. This is RocketMQ's
                            behaviour; it is off because it is surprising
    read_from               SUGGESTED: the replica that the broker names, as RocketMQ's clients do, and a
                            slave while the master is away. MASTER: only the master; no reads while it is
                            away. PREFER_SLAVE: a slave that serves reads (slaveReadEnable), else the master;
                            at the end of the queue a slave does not hold a pull, so new messages may arrive
                            1 s later
    read_lag_count_max      with PREFER_SLAVE: once this client has read all that the slave has, a slave more
                            than this many messages behind the master is left for a while, and the queue is
                            read at the master
    orderly                 deliver the messages of a queue strictly one after the other: the queue is locked
                            at its master, and its next message is delivered when the previous one is
                            acknowledged. `suspend` puts a failed message back
    orderly_batch_count_max messages of a queue that are delivered together
    orderly_retry_count_max the number of times `suspend` puts a message back before it goes to the dead
                            letters; -1: no limit, so that no message overtakes it
    allocate                how the members of a group share the queues of a topic; all members need the same
                            strategy: allocate_averagely, allocate_by_circle, AllocateByConsistentHash(), ...
                            or your own function
    server_assignment       the brokers assign the queues, by allocate_averagely or allocate_by_circle
                            (`clientRebalance=false` in Java). RocketMQ 5 and TandemMQ brokers support this;
                            with older brokers the members share the queues themselves
    serializer              decodes the bodies: `message.value` is the result. A message whose body it refuses
                            becomes a dead letter with the reason, and is not delivered
    on_assigned             called with a tuple of queues that are read here from now on, in the loop: it
                            must not block
    on_revoked              likewise, before these queues are committed and released: to another member, or at
                            the close. `ack` still counts
    on_lost                 likewise, when another member has the lock of these queues of an orderly consumer:
                            unacknowledged messages are delivered there
    offsets_dir             the folder of a broadcasting consumer's offsets; None: ~/.rocketmq_offsets
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
    serializer: Serializer | None = None
    on_assigned: Callable[[tuple[MessageQueue, ...]], object] | None = None
    on_revoked: Callable[[tuple[MessageQueue, ...]], object] | None = None
    on_lost: Callable[[tuple[MessageQueue, ...]], object] | None = None
    offsets_dir: str | None = None

    def __post_init__(self) -> None:
        _check_kind(self, client=ClientOptions, model=MessageModel, start_from=StartFrom, read_from=ReadFrom)
        _check_method(self, "serializer", "decode", "have a method decode, such as Json(Order)")
        _check_hook(self, "on_assigned", "on_revoked", "on_lost")
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
    """The options of a push consumer; `auto_ack` has no effect.

    worker_count        handlers that run at the same time: tasks for an async handler, threads for a plain
                        one
    batch_count_max     None: the handler gets one message. N: it gets a list of at most N messages
                        of its topic, those that are available. An orderly handler gets messages of one queue,
                        at most orderly_batch_count_max
    batch_linger_s      the time for which a worker waits for more messages when fewer than batch_count_max
                        are available
    order_key           None: messages are handled beside each other. A function of a message, such as
                        `message_key`: messages with an equal key are handled one after the other. A failed
                        one is tried again in its place after retry_delays_s, by default orderly_suspend_s,
                        and becomes a dead letter after retry_count_max retries. None as key: no order
    middleware          async functions of a message (or the list of a batch) and of `call_next`, which the
                        handler is called through, the first one first; a plain handler still runs in threads
    consume_timeout_s   a message whose handler takes longer is sent back with delay level 3. An async handler
                        is cancelled then; a plain one continues in its thread, and its result is ignored.
                        None: no limit. An orderly handler has no limit
    retry_delays_s      the delays of a failed message in seconds, one for each attempt; the last one repeats.
                        Empty: by retry_delay_level. Brokers of RocketMQ 4 round up to their delay levels
    retry_delay_level   for failed messages; 0: the broker chooses, longer each time; -1: directly to the dead
                        letters
    orderly_suspend_s   the pause of an orderly queue after a message failed, without retry_delays_s
    on_consume          called with a ConsumeEvent when a handler has finished, in the event loop: it must not
                        block
    metrics             counts the calls of the handlers of this consumer
    trace               write RocketMQ's message trace of every handled message to `trace_topic`
    drain_s             the time for which `close` waits for running handlers
    """

    worker_count: int = 20
    batch_count_max: int | None = None
    batch_linger_s: float = 0.0
    order_key: Callable[[ReceivedMessage], Hashable] | None = None
    middleware: Sequence[HandleMiddleware] = ()
    consume_timeout_s: float | None = 900.0
    retry_delays_s: Sequence[float] = ()
    retry_delay_level: int = 0
    orderly_suspend_s: float = 1.0
    on_consume: Callable[[ConsumeEvent], object] | None = None
    metrics: ClientMetrics | None = None
    trace: bool = False
    trace_topic: str = TRACE_TOPIC
    drain_s: float = 30.0
    span_max: int | None = 2_000

    def __post_init__(self) -> None:
        ConsumerOptions.__post_init__(self)
        _check(self, "worker_count", low=1, high=1000)
        if self.batch_count_max is not None:
            _check(self, "batch_count_max", low=1, high=1 << 20)
        _check(self, "batch_linger_s", low=0.0, high=60.0)
        _check_hook(self, "order_key")
        _check_middleware(self)
        _check_method(self, "metrics", "add_consumer", "be ClientMetrics()")
        if self.order_key is not None and (self.orderly or self.batch_count_max is not None):
            raise ConfigError("PushOptions.order_key: not with orderly or batch_count_max")
        if self.consume_timeout_s is not None:
            _check(self, "consume_timeout_s", low=0.01, high=86_400)
        _check(self, "retry_delay_level", low=-1, high=18)
        _check_kind(self, retry_delays_s=Sequence)
        if not all(isinstance(one, int | float) and 0 <= one <= DELAY_S_MAX for one in self.retry_delays_s):
            raise ConfigError(
                f"PushOptions.retry_delays_s = {self.retry_delays_s!r}: must be numbers from 0 to"
                f" {DELAY_S_MAX}"
            )
        _check(self, "orderly_suspend_s", low=0.0, high=3600)
        _check(self, "drain_s", low=0.0, high=3600)
        _check_hook(self, "on_consume")
        check_topic(self.trace_topic)


class HandlerChanges(TypedDict, total=False):
    """The options of PushOptions that one handler may have for itself."""

    worker_count: int
    batch_count_max: int | None
    batch_linger_s: float
    order_key: Callable[[ReceivedMessage], Hashable] | None
    serializer: Serializer | None
    middleware: Sequence[HandleMiddleware]
    consume_timeout_s: float | None
    retry_delays_s: Sequence[float]
    retry_delay_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PopOptions:
    """The options of a pop consumer.

    start_from   FIRST or LAST, for queues that the group has never read
    invisible_s  the time for which other members of the group do not get a received message
    ordered      the messages of a queue come in order: its next ones come when the received ones are
                 acknowledged, or their time is over
    serializer   as for ConsumerOptions
    """

    client: ClientOptions = field(default_factory=ClientOptions)
    start_from: StartFrom = StartFrom.LAST
    invisible_s: float = 60.0
    ordered: bool = False
    serializer: Serializer | None = None

    def __post_init__(self) -> None:
        _check_kind(self, client=ClientOptions, start_from=StartFrom)
        _check_method(self, "serializer", "decode", "have a method decode, such as Json(Order)")
        _check(self, "invisible_s", low=0.1, high=86_400)
        if self.start_from is StartFrom.TIMESTAMP:
            raise ConfigError("PopOptions.start_from = TIMESTAMP: brokers serve pops from FIRST or LAST only")


def parse_name_servers(servers: ServerNames) -> tuple[str, ...]:
    """Returns the addresses in `host:port;host:port`, or in a sequence of such texts, in their order. The
    default port is 9876.

    Raises:  ConfigError naming the piece that is not an address, or when there is no address.
    """
    texts = [servers] if isinstance(servers, str) else servers
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(
            f"name servers {servers!r}: must be a string such as host:port;host:port, or a sequence of those"
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
