"""The thresholds of cold reads, for operators: UPDATE_COLD_DATA_FLOW_CTR_CONFIG (2001), REMOVE_ (2002) and
GET_COLD_DATA_FLOW_CTR_INFO (2003).

Source: spec semantics 20.3 and 23.1.
"""

from __future__ import annotations

import logging

from tandemmq.broker.guards import invalid
from tandemmq.broker.pull.cold_reads import ColdReads
from tandemmq.errors import BadRequest, ConfigError
from tandemmq.protocol.bodies.cold import encode_cold_control_info
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties_file import parse_properties
from tandemmq.protocol.topic_names import group_fault
from tandemmq.remoting.channel import Channel
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

THRESHOLD_BYTES_MAX = 2**63 - 1


class ColdHandlers:
    """Shows and changes what `ColdReads` holds; also while coldDataFlowControlEnable is off."""

    def __init__(self, reads: ColdReads) -> None:
        self._reads = reads

    def handle_update(self, channel: Channel, command: Command) -> Command:
        """UPDATE_COLD_DATA_FLOW_CTR_CONFIG: lines `group=bytes`; all of them or none."""
        try:
            settings = parse_properties(bytes(command.body), "the request")
        except ConfigError as error:
            raise BadRequest(f"the body cannot be read: {error}") from None
        thresholds = {group: _parse_threshold(group, setting.text) for group, setting in settings.items()}
        self._reads.set_thresholds(thresholds)
        log.info(events.COLD_THRESHOLDS_CHANGED, extra={"set_bytes": thresholds, "peer": channel.peer})
        return command.reply()

    def handle_remove(self, channel: Channel, command: Command) -> Command:
        """REMOVE_COLD_DATA_FLOW_CTR_CONFIG: the body is the group; one without a threshold is no error."""
        group = bytes(command.body).decode("utf-8", "replace").strip()
        _check_group(group)
        self._reads.remove_threshold(group)
        log.info(events.COLD_THRESHOLDS_CHANGED, extra={"removed": group, "peer": channel.peer})
        return command.reply()

    def handle_show(self, channel: Channel, command: Command) -> Command:
        """GET_COLD_DATA_FLOW_CTR_INFO: thresholds, and what was read in the window of 5 s that runs."""
        return command.reply(body=encode_cold_control_info(self._reads.info()))


def _check_group(group: str) -> None:
    fault = group_fault(group)
    if fault:
        raise invalid(fault)


def _parse_threshold(group: str, text: str) -> int:
    _check_group(group)
    digits = text.strip()
    if not (
        digits.isascii() and digits.isdigit() and len(digits) <= 19 and int(digits) <= THRESHOLD_BYTES_MAX
    ):
        raise invalid(f"{group}={text[:32]}: must be bytes per 5 s, within 0..{THRESHOLD_BYTES_MAX}")
    return int(digits)
