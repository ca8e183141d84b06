"""`PlainAccess`: access control of the proxy by the rules of RocketMQ 4.x, read from files beside the proxy.

The files, their reloading and the decisions are those of brokers (`broker.access.plain_rules`): first the
global white addresses, then the account and its white address, its signature, its permissions. The signature
is that of gRPC clients, and the needed rights are those of users of 5.x (`access`).

Invariants: an address is that of the connection, or the one that a configured load balancer reports; no
            header changes it.
At a bound: the verdicts on HOSTS_MAX addresses are kept; then all are forgotten.
Source:     spec proxy 3.2; spec semantics 21.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tandemmq.broker.access.needs import of_broker
from tandemmq.broker.access.plain_rules import NO_RULES, PlainFiles, PlainRules
from tandemmq.proxy.access import Denials, Unauthenticated, check_signature, claim_of, needs_of_request
from tandemmq.proxy.rpc import Message
from tandemmq.remoting.audit import AccessLog
from tandemmq.runtime.ports import Address, Clock, Disk

HOSTS_MAX: Final = 65_536


class PlainAccess:
    """Checks requests by the rules of `files`: `check` is a `CheckAccess` of `Callers`."""

    def __init__(self, directory: Path, *, cluster: str, disk: Disk, clock: Clock, audit: AccessLog) -> None:
        self._cluster = cluster
        self._denials = Denials(audit)
        self._rules = NO_RULES
        self._is_white: dict[str, bool] = {}
        self.files = PlainFiles(directory, disk=disk, clock=clock, on_rules=self._set_rules)

    async def check(self, metadata: Mapping[str, str], peer: Address, request: Message) -> str:
        """Returns the access key of the account; "" for a white address.

        Raises:  RpcRefused UNAUTHORIZED; the reason is in the audit log.
        """
        host, name = peer[0], request.DESCRIPTOR.name
        if self._is_host_white(host):
            return ""
        access_key = ""
        try:
            claim = claim_of(metadata)
            access_key = claim.access_key
            account = self._rules.accounts.get(access_key)
            if account is None:
                raise Unauthenticated(f"there is no account with access key {access_key}")
            if account.matches_address(host):
                return access_key
            check_signature(claim, metadata, account.secret_key.decode())
        except Unauthenticated as error:
            raise self._denials.unauthenticated(access_key, peer, name, str(error)) from None
        for need in needs_of_request(request):
            if not account.allows(of_broker(need, self._cluster)):
                raise self._denials.forbidden(access_key, peer, name, need)
        return access_key

    def _is_host_white(self, host: str) -> bool:
        is_white = self._is_white.get(host)
        if is_white is None:
            if len(self._is_white) >= HOSTS_MAX:
                self._is_white.clear()
            is_white = self._is_white[host] = self._rules.is_white(host)
        return is_white

    def _set_rules(self, rules: PlainRules) -> None:
        self._rules = rules
        self._is_white.clear()
