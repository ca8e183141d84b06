"""Routes, brokers and topic names from the first name server that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandemmq.errors import BrokerUnreachable
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies.route import TopicRoute, decode_cluster_info, decode_topic_route
from tandemmq.protocol.bodies.topic import decode_topic_list
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command, Header
from tandemmq.protocol.requests.route import RouteRequest
from tandemmq.spark.security import OPEN, Security
from tandemmq.spark.wire import POOL, UNREACHABLE


class NameServers:
    """The name servers of one query."""

    def __init__(self, addresses: Sequence[str], timeout_s: float, security: Security = OPEN) -> None:
        self._addresses = list(addresses)
        self._timeout_s = timeout_s
        self._security = security

    def find_route(self, topic: str) -> TopicRoute | None:
        """The route of a topic; None when no name server knows it.

        Raises:  BrokerUnreachable when no name server answers.
        """
        header = RouteRequest(topic=topic, accepts_standard_json=True)
        answer = self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return decode_topic_route(accept(answer).body)

    def find_broker(self, name: str) -> Mapping[int, str]:
        """Broker id -> address of a broker that is registered, whatever its topics are; empty when it is not.

        Raises:  BrokerUnreachable when no name server answers.
        """
        info = decode_cluster_info(accept(self._ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
        return info.brokers[name].addresses if name in info.brokers else {}

    def list_topics(self) -> list[str]:
        """All topics, the system's own too."""
        return list(decode_topic_list(accept(self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body))

    def _ask(self, code: RequestCode, header: Header | None = None) -> Command:
        """The answer of the first name server that gives one; it is asked first from then on."""
        failures = []
        for address in list(self._addresses):
            try:
                with POOL.borrow(address, self._security) as connection:
                    answer = connection.request(Command.request(code, header), self._timeout_s)
            except UNREACHABLE as error:
                failures.append(str(error))
                continue
            self._addresses.remove(address)
            self._addresses.insert(0, address)
            return answer
        raise BrokerUnreachable(f"no name server answers: {'; '.join(failures)}")


def accept(answer: Command) -> Command:
    """`answer` itself.

    Raises:  the RequestRejected class of any code but success.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return answer
