"""A broker's reaction to notices of the master's address (spec nameserver 9, spec remoting 8.5)."""

from __future__ import annotations

from typing import cast

import pytest

from tandemmq.broker.admin.settings import HaHandlers
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import ExchangeHaInfoRequest, ExchangeHaInfoResponse
from tandemmq.protocol.requests.route import MinBrokerIdChange
from tandemmq.remoting.channel import Channel

NOBODY = cast(Channel, None)  # no handler uses the channel


class Told:
    """The handlers of one broker, with the number of lookups of its master."""

    def __init__(self, *, is_slave: bool) -> None:
        self.look_count = 0
        self.handlers = HaHandlers(
            is_slave=is_slave,
            first_end=77,
            own_addresses=lambda: ("10.0.0.1:10911", "10.0.0.1:10912"),
            register_soon=self._look,
        )

    def _look(self) -> None:
        self.look_count += 1


@pytest.mark.parametrize(("is_slave", "look_count"), [(True, 2), (False, 0)])
def test_notices_make_a_slave_ask_its_name_servers(is_slave: bool, look_count: int) -> None:
    told = Told(is_slave=is_slave)
    notice = MinBrokerIdChange(min_broker_id=0, min_broker_address="10.6.6.6:1", ha_address="10.6.6.6:2")
    told.handlers.handle_min_id_change(NOBODY, Command.request(Code.NOTIFY_MIN_BROKER_ID_CHANGE, notice))
    exchange = ExchangeHaInfoRequest(master_ha_address="10.6.6.6:2", master_address="10.6.6.6:1")
    answer = told.handlers.handle_exchange(NOBODY, Command.request(Code.EXCHANGE_BROKER_HA_INFO, exchange))
    assert (answer.code, told.look_count) == (0, look_count)


def test_only_a_master_tells_addresses() -> None:
    question = Command.request(Code.EXCHANGE_BROKER_HA_INFO, ExchangeHaInfoRequest())
    answer = Told(is_slave=False).handlers.handle_exchange(NOBODY, question)
    assert answer.header == ExchangeHaInfoResponse(
        master_address="10.0.0.1:10911", master_ha_address="10.0.0.1:10912", master_flushed_offset=77
    )
    assert Told(is_slave=True).handlers.handle_exchange(NOBODY, question).header is None
