"""Viewers and their sessions: log in, roles, CSRF tokens, and the limit of attempts.

The console has no rights of its own. A cluster with access control is read and changed with the keys of the
user who is logged in, so its brokers decide; a cluster without it is open to local visitors. Secrets stay in
the memory of this process.

Invariants:
- A session's id is replaced at log-in, so an id that was known before has no rights.
- A CSRF token is the keyed hash of the session's id and is not stored; visitors cost no memory.
- Keys count as proven only if the broker refuses a wrong secret for the same name; otherwise any keys would.
At a bound: the session used least recently ends (SESSIONS_MAX). Attempts to log in are refused with the time
to wait (`AttemptLimit`).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
from collections import OrderedDict, deque
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandemmq.api import broker_admin
from tandemmq.console.sampler import Sampler
from tandemmq.errors import BrokerUnreachable, ConfigError, NotPermitted, RequestTimeout, TandemError
from tandemmq.manage.reach import READ_TIMEOUT_S
from tandemmq.manage.tools import UNSIGNED, Tools, find_targets, open_tools
from tandemmq.protocol.signature import Credentials
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope

SESSIONS_MAX: Final = 256
IDLE_S_MAX: Final = 3600.0
"""A session ends after this time without a click; refreshes by the page's script do not count."""
AGE_S_MAX: Final = 12 * 3600.0
SWEEP_S: Final = 60.0
VISITOR: Final = ""
"""The user name of a visitor who is not logged in."""
VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
_TRIED_BROKERS_MAX: Final = 3
_SCRYPT: Final = {"n": 2**14, "r": 8, "p": 1}


class LoginRefused(ConfigError):
    """A failed log-in; the text says why and is shown to the user."""


@dataclass(slots=True)
class Viewer:
    """The connections of one user, shared by that user's sessions, and the readings made with them."""

    tools: Tools
    sampler: Sampler
    stack: AsyncExitStack

    async def close(self) -> None:
        await self.stack.aclose()


@dataclass(slots=True)
class Session:
    """One browser. `may_change` is the console's own limit; the brokers' rules apply in addition."""

    id: str
    csrf: str
    user: str
    may_change: bool
    viewer: Viewer | None
    begun_at: float = 0.0
    used_at: float = 0.0
    outage: str = ""
    """The reason why a visitor has no viewer."""

    @property
    def is_admitted(self) -> bool:
        """False for a browser that sees only the log-in: a visitor where visitors are not admitted, or of a
        cluster with access control.
        """
        return self.viewer is not None and (bool(self.user) or not self.viewer.sampler.is_guarded)

    def is_expired(self, now_s: float) -> bool:
        """Returns True if the session was idle for too long, or is too old."""
        return now_s - self.used_at >= IDLE_S_MAX or now_s - self.begun_at >= AGE_S_MAX


class AttemptLimit:
    """Counts failed attempts to log in within WINDOW_S: by address, by address and name, and of all. The
    addresses of one IPv6 network of 64 bits count as one, because one machine may use all of them.

    At a bound: with KEYS_MAX keys the oldest is forgotten; the limit for all still holds. It does not apply
    to addresses with an earlier successful log-in, so strangers cannot lock them out.
    """

    WINDOW_S: Final = 60.0
    PER_NAME: Final = 5
    PER_ADDRESS: Final = 15
    TOTAL: Final = 100
    KEYS_MAX: Final = 1024

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, ...], deque[float]] = OrderedDict()
        self._proven: OrderedDict[str, None] = OrderedDict()

    def wait_s(self, address: str, name: str) -> float:
        """Returns the seconds until the next attempt is allowed; 0 if it is allowed now."""
        now = self._clock.monotonic()
        waits = [0.0]
        for key, limit in self._limits(address, name):
            times = self._failures.get(key, ())
            if len(times) >= limit:
                waits.append(times[-limit] + self.WINDOW_S - now)
        return max(waits)

    def fail(self, address: str, name: str) -> float:
        """Counts an attempt and returns its moment for `succeed`. It is counted before the secret is checked,
        so parallel ones count as well.
        """
        now = self._clock.monotonic()
        for key, limit in self._limits(address, name):
            self._failures.setdefault(key, deque(maxlen=limit)).append(now)
            self._failures.move_to_end(key)
        while len(self._failures) > self.KEYS_MAX:
            self._failures.popitem(last=False)
        return now

    def succeed(self, address: str, name: str, at_s: float) -> None:
        """Forgets the failures of this name at this address, and that the attempt of `at_s` was counted."""
        for key, _ in self._limits(address, name):
            with suppress(ValueError):  # forgotten at a bound
                self._failures.get(key, deque()).remove(at_s)
        network = _network_of(address)
        self._failures.pop((network, name), None)
        self._proven[network] = None
        self._proven.move_to_end(network)
        while len(self._proven) > self.KEYS_MAX:
            self._proven.popitem(last=False)

    def _limits(self, address: str, name: str) -> tuple[tuple[tuple[str, ...], int], ...]:
        network = _network_of(address)
        limits = ((network, name), self.PER_NAME), ((network,), self.PER_ADDRESS)
        return limits if network in self._proven else (*limits, ((), self.TOTAL))


def _network_of(address: str) -> str:
    """Returns the address, or its network of 64 bits if it is one of IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))


class PasswordFile:
    """The console's own users, for clusters without access control: lines of `name:role:hash`, where the role
    is viewer or operator; `tandemmq console --hash-password` prints the hash of a password.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file. Raises ConfigError naming the first invalid line."""
        self._users: dict[str, tuple[str, str]] = {}
        # An unknown name takes as long as a wrong password, so that the time does not tell them apart.
        self._unknown = "", hash_password(secrets.token_hex())
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--password-file {path}: {error}") from error
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, role, hashed = [*line.strip().split(":"), "", ""][:3]
            if not name or role not in (VIEWER, OPERATOR) or hashed.count("$") != 2:
                raise ConfigError(
                    f"--password-file {path}, line {number}: must be name:viewer:HASH or name:operator:HASH;"
                    " `tandemmq console --hash-password` prints the hash"
                )
            self._users[name] = role, hashed
        if not self._users:
            raise ConfigError(f"--password-file {path}: names no user")

    def role_of(self, name: str, password: str) -> str:
        """Returns the role of the user. Raises LoginRefused for an unknown name or a wrong password."""
        role, hashed = self._users.get(name, self._unknown)
        if not verify_password(password, hashed) or not role:
            raise LoginRefused("the name or the password is wrong")
        return role


def hash_password(password: str) -> str:
    """Returns the salted hash of a password, as a password file has it."""
    salt = secrets.token_bytes(16)
    return f"scrypt${salt.hex()}${_scrypt(password, salt).hex()}"


def verify_password(password: str, hashed: str) -> bool:
    """Returns True if the hash is that of the password."""
    _, salt, digest = hashed.split("$")
    try:
        return hmac.compare_digest(_scrypt(password, bytes.fromhex(salt)), bytes.fromhex(digest))
    except ValueError:
        return False


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=_SCRYPT["n"], r=_SCRYPT["r"], p=_SCRYPT["p"])


async def prove_keys(name_servers: str, keys: Credentials) -> None:
    """Checks the keys by a signed request to a broker.

    Raises:  LoginRefused when they are wrong, when the cluster has no access control, or when no broker
             answers; the errors of the name server.
    """
    async with open_tools(name_servers, keys) as tools:
        try:
            targets = await find_targets(tools)
        except NotPermitted as error:
            raise LoginRefused(f"the name server refuses these keys: {error.remark}") from error
    for target in targets[:_TRIED_BROKERS_MAX]:
        try:
            refusal = await _refusal(keys, target.address)
            wrong = [
                await _refusal(Credentials(keys.access_key, secrets.token_hex(16)), target.address)
                for _ in range(2)
            ]
        except (BrokerUnreachable, RequestTimeout):
            continue
        if "" in wrong:
            raise LoginRefused(
                f"the broker {target.address} accepts any keys from this console: it has no access control"
            )
        # A user who may not read a broker's state is refused, too, but for another reason.
        if refusal == "" or (refusal not in wrong and wrong[0] == wrong[1]):
            return
        raise LoginRefused("the access key or the secret is wrong")
    raise LoginRefused("no broker answers, so the keys cannot be checked now")


async def _refusal(keys: Credentials, address: str) -> str:
    """Returns the reason for which the broker refuses these keys; empty if it accepts them."""
    async with open_tools("", keys) as tools:
        try:
            await broker_admin.query_runtime_info.within(READ_TIMEOUT_S, tools.remoting, address)
        except NotPermitted as error:
            return error.remark or "refused"
    return ""


@dataclass(slots=True)
class Sessions:
    """All sessions, and the viewers that they share.

    With a password file its users log in, and read and change the cluster with the keys of the tools' file.
    `admits_visitors` lets browsers in without log-in; their requests are unsigned.
    """

    name_servers: str
    clock: Clock
    admits_visitors: bool
    passwords: PasswordFile | None = None
    limit: AttemptLimit = field(init=False)
    _key: bytes = field(init=False, default_factory=lambda: secrets.token_bytes(32))
    _sessions: OrderedDict[str, Session] = field(init=False, default_factory=OrderedDict)
    _viewers: dict[Credentials | None, Viewer] = field(init=False, default_factory=dict)
    _notices: OrderedDict[str, str] = field(init=False, default_factory=OrderedDict)
    _scope: TaskScope | None = field(init=False, default=None)
    _opening: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.limit = AttemptLimit(self.clock)

    async def start(self) -> None:
        """Opens the connections of visitors if they are admitted, so that a history exists for the first; and
        ends sessions that expire.
        """
        self._scope = TaskScope("sessions")
        self._scope.start("sweep", self._sweep_for_ever())
        if self.admits_visitors:
            with suppress(TandemError):  # without a name server each page says so
                await self._viewer(UNSIGNED)

    async def close(self) -> None:
        """Ends all sessions and closes their connections."""
        if self._scope is not None:
            await self._scope.close()
        self._sessions.clear()
        for viewer in list(self._viewers.values()):
            await viewer.close()
        self._viewers.clear()

    async def find(self, session_id: str, *, is_click: bool) -> Session:
        """Returns the session with this id, or a visitor's; an id that no server could have made is
        replaced.
        """
        now = self.clock.monotonic()
        found = self._sessions.get(session_id)
        if found is not None:
            if not found.is_expired(now):
                found.used_at = now if is_click else found.used_at
                self._sessions.move_to_end(session_id)
                return found
            await self.end(found)
        if found is not None or not (len(session_id) == 43 and session_id.isascii()):
            session_id = secrets.token_urlsafe(32)
        visitor = Session(session_id, self._csrf(session_id), VISITOR, True, None)
        if self.admits_visitors:
            try:
                visitor.viewer = await self._viewer(UNSIGNED)
            except TandemError as error:
                visitor.outage = str(error)
        return visitor

    async def log_in(self, address: str, name: str, secret: str) -> Session:
        """Returns a new session of this user.

        Raises:  LoginRefused with the reason, also when there were too many attempts; TandemError when the
                 name server does not answer.
        """
        wait_s = self.limit.wait_s(address, name)
        if wait_s > 0:
            raise LoginRefused(f"too many attempts: try again in {wait_s:.0f} s")
        tried_at_s = self.limit.fail(address, name)
        keys, may_change = None, True
        if self.passwords is not None:
            may_change = self.passwords.role_of(name, secret) == OPERATOR
        elif name and secret:
            keys = Credentials(name, secret)
            await prove_keys(self.name_servers, keys)
        else:
            raise LoginRefused("an access key and its secret are needed")
        self.limit.succeed(address, name, tried_at_s)
        while len(self._sessions) >= SESSIONS_MAX:
            await self.end(next(iter(self._sessions.values())))
        session_id, now = secrets.token_urlsafe(32), self.clock.monotonic()
        viewer = await self._viewer(keys)
        session = Session(session_id, self._csrf(session_id), name, may_change, viewer, now, now)
        self._sessions[session_id] = session
        return session

    async def end(self, session: Session) -> None:
        """Ends the session; its user's connections are closed with the last session of that user."""
        self._sessions.pop(session.id, None)
        viewer = session.viewer
        if viewer is None or any(one.viewer is viewer for one in self._sessions.values()):
            return
        for keys, held in list(self._viewers.items()):
            if held is viewer and keys != UNSIGNED:
                del self._viewers[keys]
                await viewer.close()

    async def sweep(self) -> None:
        """Ends the sessions that have expired, so that their secrets leave the memory."""
        now = self.clock.monotonic()
        for session in [one for one in self._sessions.values() if one.is_expired(now)]:
            await self.end(session)

    async def _sweep_for_ever(self) -> None:
        while True:
            await self.clock.sleep(SWEEP_S)
            await self.sweep()

    def leave_notice(self, session: Session, text: str) -> None:
        """Keeps a text that the session's next page shows once."""
        self._notices[session.id] = text
        while len(self._notices) > SESSIONS_MAX:
            self._notices.popitem(last=False)

    def take_notice(self, session: Session) -> str:
        """Returns the text for this session's page and forgets it; empty if there is none."""
        return self._notices.pop(session.id, "")

    def _csrf(self, session_id: str) -> str:
        return hmac.new(self._key, session_id.encode(), hashlib.sha256).hexdigest()

    async def _viewer(self, keys: Credentials | None) -> Viewer:
        """Returns the connections that sign with these keys. Raises TandemError without a name server, also
        when it does not answer in time.
        """
        async with self._opening:
            found = self._viewers.get(keys)
            if found is None:
                stack = AsyncExitStack()
                try:
                    async with asyncio.timeout(READ_TIMEOUT_S):
                        tools = await stack.enter_async_context(open_tools(self.name_servers, keys))
                except TandemError:  # first: a RequestTimeout is also a TimeoutError, with its own text
                    raise
                except TimeoutError:
                    text = f"the name server does not answer within {READ_TIMEOUT_S:g} s"
                    raise RequestTimeout(text) from None
                sampler = Sampler(tools, self.clock)
                stack.push_async_callback(sampler.close)
                sampler.start()
                found = self._viewers[keys] = Viewer(tools, sampler, stack)
            return found
