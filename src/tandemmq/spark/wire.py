"""A small blocking client of the remoting protocol, for Spark's driver and executors: credentials and TLS
(`Security`), the frames of a connection (`FrameReader`), connections and their pool (`WireConnection`,
`ConnectionPool`), and name servers (`BlockingNameServers`).

Spark calls this code in plain threads of short-lived processes, where an event loop is of no use. A
connection carries many requests at once, so one thread keeps a broker busy; answers may arrive in any order.
Connections are pooled per process and address: executors reuse their Python process, so the next task finds
them open. The answer to a bulk pull has megabytes. It is received directly into the buffer that Arrow reads;
only the part that arrived with its first bytes is copied.

Invariants: a size that a peer announces is checked before memory is allocated for it (spec remoting 1).
Nothing here is pickled: readers contain options and addresses, never sockets (spec spark SP-12).
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from tandemmq.errors import BrokerUnreachable, ConfigError, RemoteProtocolError, RequestTimeout
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.route import ClusterInfo, TopicRoute
from tandemmq.protocol.bodies.tables import decode_topic_list
from tandemmq.protocol.codes import SERIALIZE_ROCKETMQ, RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FRAME_BYTES_MAX, encode_frame
from tandemmq.protocol.header_compact import decode_header_compact
from tandemmq.protocol.header_json import decode_header_json
from tandemmq.protocol.requests.route import RouteRequest
from tandemmq.protocol.signature import Credentials
from tandemmq.units import KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The credentials and TLS settings of a query; empty texts for unused ones.

    Secrets are sent to the executors with the options and appear nowhere else: not in texts, offsets or
    plans.
    Source: spec remoting 7 (signature), 1 (TLS).
    """

    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    is_tls: bool = False
    ca_path: str = ""
    certificate_path: str = ""
    key_path: str = ""
    verifies_peer: bool = True

    def sign(self, command: Command) -> None:
        """Adds the access key, and the signature over all fields and the body."""
        if not self.access_key:
            return
        Credentials(self.access_key, self.secret_key, self.security_token).sign(command)

    def wrap(self, connection: socket.socket, host: str) -> socket.socket:
        """Returns the connection itself, or TLS over it.

        Raises:  OSError if the peer does not speak TLS or fails verification; ConfigError if a file named in
                 the options cannot be used here.
        """
        if not self.is_tls:
            return connection
        try:
            return self._context().wrap_socket(connection, server_hostname=host)
        except (OSError, ConfigError):
            connection.close()
            raise

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_path or None)
        except OSError as error:
            raise ConfigError(f"the option tls.ca: {self.ca_path} cannot be used here: {error}") from None
        if not self.verifies_peer:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_path:
            try:
                context.load_cert_chain(self.certificate_path, self.key_path or None)
            except OSError as error:
                files = f"{self.certificate_path} with the key in {self.key_path or 'the same file'}"
                raise ConfigError(
                    f"the options tls.certificate and tls.key: {files} cannot be used here: {error}"
                ) from None
        return context


OPEN = Security()
"""No credentials and no TLS."""


def take_security(values: dict[str, Any]) -> Security:
    """Returns the security options of a query, taken out of its values.

    Raises:  ConfigError naming the missing option.
    """
    found = Security(**{name: values.pop(name) for name in Security.__slots__})
    if bool(found.access_key) != bool(found.secret_key):
        raise ConfigError("the options accessKey and secretKey belong together")
    if found.security_token and not found.access_key:
        raise ConfigError("the option securityToken needs accessKey and secretKey")
    paths = {"tls.ca": found.ca_path, "tls.certificate": found.certificate_path, "tls.key": found.key_path}
    details = [name for name, path in paths.items() if path]
    if details and not found.is_tls:
        raise ConfigError(f"the option {details[0]} needs tls=true")
    if found.key_path and not found.certificate_path:
        raise ConfigError("the option tls.key needs tls.certificate")
    return found


READ_BYTES: Final = 64 * KIB

_HEAD: Final = Struct(">iI")
_HEADER_BYTES_MAX: Final = 0xFFFFFF

ReceiveInto = Callable[[memoryview], int]
"""A function that fills the view from its start with at least one byte and returns the count; raises if no
bytes arrive.
"""


class FrameReader:
    """Reads the commands of one connection in order; buffers at most one unfinished frame."""

    def __init__(self) -> None:
        self._read = bytearray(READ_BYTES)
        self._begin = 0
        self._end = 0

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes of later frames that have already been received."""
        return self._end - self._begin

    def next_command(self, receive_into: ReceiveInto) -> Command:
        """Returns the next command; its body may be a view of a separate buffer.

        Raises:  RemoteProtocolError if the stream is invalid, and any error of `receive_into`; the connection
                 is then unusable.
        """
        while self.buffered_bytes < _HEAD.size:
            self._read_more(receive_into)
        length, mark = _HEAD.unpack_from(self._read, self._begin)
        header_size = mark & _HEADER_BYTES_MAX
        if not 4 + header_size <= length <= FRAME_BYTES_MAX - 4 or mark >> 24 > SERIALIZE_ROCKETMQ:
            raise RemoteProtocolError(f"invalid frame: length {length}, header mark {mark:#x}")
        frame = memoryview(bytearray(4 + length))
        filled = min(len(frame), self.buffered_bytes)
        frame[:filled] = memoryview(self._read)[self._begin : self._begin + filled]
        self._begin += filled
        while filled < len(frame):
            filled += receive_into(frame[filled:])
        decode = decode_header_compact if mark >> 24 else decode_header_json
        command = decode(bytes(frame[8 : 8 + header_size]), b"")
        command.body = frame[8 + header_size :]
        return command

    def _read_more(self, receive_into: ReceiveInto) -> None:
        kept = self.buffered_bytes
        if self._begin:
            self._read[:kept] = self._read[self._begin : self._end]
            self._begin, self._end = 0, kept
        self._end += receive_into(memoryview(self._read)[kept:])


CONNECT_TIMEOUT_S = 3.0
RECEIVE_BUFFER_BYTES = 4 * MIB
IN_FLIGHT_MAX = 256
"""The maximum number of requests sent before their answers are read: a broker whose answers are not read
stops reading requests.
"""

IDLE_CONNECTIONS_MAX = 4
"""The number of idle connections kept per address; a task uses one at a time."""

SUSPECT_S = 15.0

UNREACHABLE = (BrokerUnreachable, RequestTimeout, RemoteProtocolError)
"""The errors after which another replica, or a later attempt, may succeed."""


class WireConnection:
    """One TCP connection to a broker or name server; not shared between threads."""

    def __init__(
        self, address: str, *, timeout_s: float = CONNECT_TIMEOUT_S, security: Security = OPEN
    ) -> None:
        self.address = address
        self.security = security
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            plain = socket.create_connection((host, int(port)), timeout_s)
            self._socket = security.wrap(plain, host)
        except OSError as error:
            raise BrokerUnreachable(f"{address}: cannot connect: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._frames = FrameReader()
        self._deadline = 0.0
        self._opaque = 0
        self._waiting: set[int] = set()
        self._answers: dict[int, Command] = {}

    def send(self, commands: Sequence[Command]) -> list[int]:
        """Sends requests together and returns their numbers, for `receive`.

        Raises:  BrokerUnreachable; the connection is then unusable.
        """
        frames = []
        for command in commands:
            self._opaque += 1
            command.opaque = self._opaque
            self.security.sign(command)
            frames.append(encode_frame(command))
        numbers = list(range(self._opaque - len(frames) + 1, self._opaque + 1))
        try:
            self._socket.sendall(b"".join(frames))
        except OSError as error:
            raise BrokerUnreachable(f"{self.address}: connection broke: {error}") from error
        self._waiting.update(numbers)
        return numbers

    def receive(self, opaque: int, deadline: float) -> Command:
        """Returns the answer to one request; answers to others that arrive first are kept.

        `deadline` is a value of time.monotonic.
        Raises:  RequestTimeout, BrokerUnreachable, RemoteProtocolError; the connection is then unusable.
        """
        self._deadline = deadline
        while opaque not in self._answers:
            answer = self._frames.next_command(self._receive_into)
            if answer.is_response and answer.opaque in self._waiting:
                self._waiting.remove(answer.opaque)
                self._answers[answer.opaque] = answer
        return self._answers.pop(opaque)

    def request(self, command: Command, timeout_s: float) -> Command:
        """Returns the answer to one request."""
        return self.request_all([command], timeout_s)[0]

    def request_all(self, commands: Sequence[Command], timeout_s: float) -> list[Command]:
        """Returns the answers in the order of the requests, with many in flight at once."""
        deadline = time.monotonic() + timeout_s
        answers: list[Command] = []
        for at in range(0, len(commands), IN_FLIGHT_MAX):
            numbers = self.send(commands[at : at + IN_FLIGHT_MAX])
            answers += [self.receive(number, deadline) for number in numbers]
        return answers

    @property
    def is_clean(self) -> bool:
        """True if nothing is in flight and the peer has not closed, so that the connection can be reused."""
        if self._waiting or self._answers or self._frames.buffered_bytes:
            return False
        readable, _, _ = select.select([self._socket], [], [], 0)
        # Bytes that TLS has already decrypted do not make the socket readable.
        pending = self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0
        return not readable and not pending

    def close(self) -> None:
        self._socket.close()

    def _receive_into(self, view: memoryview) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise RequestTimeout(f"{self.address}: no answer in time")
        self._socket.settimeout(left)
        try:
            count = self._socket.recv_into(view)
        except TimeoutError as error:
            raise RequestTimeout(f"{self.address}: no answer in time") from error
        except OSError as error:
            raise BrokerUnreachable(f"{self.address}: connection broke: {error}") from error
        if not count:
            raise BrokerUnreachable(f"{self.address}: the peer closed the connection")
        return count


class ConnectionPool:
    """Idle connections by address and credentials; a forked process starts with none."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._idle: dict[tuple[str, Security], list[WireConnection]] = {}
        self._suspect_until: dict[str, float] = {}

    def is_suspect(self, address: str) -> bool:
        """Returns True if the address recently did not answer. Other replicas are then asked first; otherwise
        every read would wait for the dead one.
        """
        return time.monotonic() < self._suspect_until.get(address, 0.0)

    @contextmanager
    def borrow(self, address: str, security: Security = OPEN) -> Iterator[WireConnection]:
        """Lends a connection for the duration of the block, and keeps it afterwards if it is still clean.

        Raises:  BrokerUnreachable if none is idle and none can be opened.
        """
        connection: WireConnection | None = None
        is_kept = False
        try:
            connection = self._pop_idle(address, security) or WireConnection(address, security=security)
            yield connection
            is_kept = connection.is_clean
            self._suspect_until.pop(address, None)
        except UNREACHABLE:
            self._suspect_until[address] = time.monotonic() + SUSPECT_S
            raise
        finally:
            if connection is not None:
                self._put_back(connection, is_kept=is_kept)

    def close(self) -> None:
        """Closes the idle connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    def _put_back(self, connection: WireConnection, *, is_kept: bool) -> None:
        idle = self._idle.setdefault((connection.address, connection.security), [])
        if is_kept and len(idle) < IDLE_CONNECTIONS_MAX:
            idle.append(connection)
        else:
            connection.close()

    def _pop_idle(self, address: str, security: Security) -> WireConnection | None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._idle = {}
        idle = self._idle.get((address, security), [])
        while idle:
            connection = idle.pop()
            if connection.is_clean:
                return connection
            connection.close()
        return None


POOL = ConnectionPool()
"""The pool of this process: module state survives between the tasks of an executor (spec spark SP-12)."""


class BlockingNameServers:
    """The name servers of one query: routes, brokers and topic names from the first one that answers."""

    def __init__(self, addresses: Sequence[str], timeout_s: float, security: Security = OPEN) -> None:
        self._addresses = list(addresses)
        self._timeout_s = timeout_s
        self._security = security

    def find_route(self, topic: str) -> TopicRoute | None:
        """Returns the route of one topic; see `find_routes`."""
        return self.find_routes([topic])[0]

    def find_routes(self, topics: Sequence[str]) -> list[TopicRoute | None]:
        """Returns the route of each topic; None for a topic that the name server does not know.

        Raises:  BrokerUnreachable if no name server answers.
        """
        headers = [RouteRequest(topic=topic, accepts_standard_json=True) for topic in topics]
        answers = self._request(*(Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, h) for h in headers))
        return [
            None
            if answer.code == ResponseCode.TOPIC_NOT_EXIST
            else decode_body(accept(answer).body, TopicRoute)
            for answer in answers
        ]

    def find_broker(self, name: str) -> Mapping[int, str]:
        """Returns the addresses of a registered broker by id, whatever its topics are; empty if it is not
        registered.

        Raises:  BrokerUnreachable if no name server answers.
        """
        (answer,) = self._request(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO))
        info = decode_body(accept(answer).body, ClusterInfo)
        return info.brokers[name].addresses if name in info.brokers else {}

    def list_topics(self) -> list[str]:
        """Returns all topics, including system topics."""
        (answer,) = self._request(Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        return list(decode_topic_list(accept(answer).body))

    def _request(self, *commands: Command) -> list[Command]:
        """Returns the answers of the first name server that answers; later requests ask that one first."""
        failures = []
        for address in list(self._addresses):
            try:
                with POOL.borrow(address, self._security) as connection:
                    answers = connection.request_all(commands, self._timeout_s)
            except UNREACHABLE as error:
                failures.append(str(error))
                continue
            self._addresses.remove(address)
            self._addresses.insert(0, address)
            return answers
        raise BrokerUnreachable(f"no name server answers: {'; '.join(failures)}")


def accept(answer: Command) -> Command:
    """Returns `answer` itself.

    Raises:  the RequestRejected class of any code but success.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return answer


def wait_before(attempt: int, interval_s: float) -> None:
    """Sleeps before a retry (1 is the first): the interval doubles, up to 16 times its initial value."""
    time.sleep(interval_s * min(2 ** (attempt - 1), 16))
