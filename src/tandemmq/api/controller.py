"""What operators ask of controllers."""

from __future__ import annotations

from tandemmq.api.calls import call
from tandemmq.errors import NotLeader
from tandemmq.protocol.bodies.controller import ControllerMember, decode_members
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.requests.controller import ChangeControllersRequest, ControllerMetadataResponse
from tandemmq.remoting.client import RemotingClient

CHANGE_TIMEOUT_S = 15.0
"""A controller that is added gets everything first."""


async def find_leader(client: RemotingClient, address: str) -> str:
    """The address of the leading controller, as the one at `address` knows it.

    Raises:  NotLeader when it knows none; what `call` raises.
    """
    answer = await call(client, address, RequestCode.CONTROLLER_GET_METADATA_INFO)
    leader = answer.decode(ControllerMetadataResponse).leader_address
    if not leader:
        raise NotLeader(f"the controller at {address} knows no leader")
    return leader


async def change_controllers(
    client: RemotingClient, leader: str, action: str, name: str = "", new_address: str = ""
) -> list[ControllerMember]:
    """The members after `list`, `add`, `remove` or `handOver`.

    Raises:  what `call` raises.
    """
    header = ChangeControllersRequest(action=action, name=name, address=new_address)
    code = RequestCode.TANDEM_CHANGE_CONTROLLERS
    answer = await call(client, leader, code, header, timeout_s=CHANGE_TIMEOUT_S)
    return decode_members(answer.body)
