"""The settings of one seed of elected brokers."""

from __future__ import annotations

from dataclasses import replace

from sim.cluster.settings import Settings, draw_faults, draw_settings
from sim.dice import Dice
from tandemmq.replication.core.options import FirstTransfer
from tandemmq.store import BrokerRole

FAULTS = {
    "lose master": 10,
    "lose slave": 6,
    "restart broker": 4,
    "hand over": 5,
    "lose controller": 6,
    "lose controller and master": 4,
    "restore controller": 5,
    "empty controller": 3,
    "swap controllers": 1,
    "old record of a lone master": 4,
    "restore broker": 5,
    "restore one of all": 3,
    "foreign disk": 3,
    "fail a sync": 3,
    "stall a disk": 5,
    "fail writes": 3,
    "fill a disk": 3,
    "lose name server": 2,
    "lose consumer": 3,
    "lose producer": 2,
    "partition": 8,
    "cut a port": 6,
    "break connections": 5,
    "stall": 8,
    "step a clock": 3,
}
"""The faults, with their relative frequencies."""


FAR_MS = (90.0, 110.0)
"""The latency in each direction between distant sites."""


def draw_elected(dice: Dice) -> Settings:
    """Draws settings, mostly recommended set-ups: two or three brokers, one controller or three."""
    settings = draw_settings(dice)
    return replace(
        settings,
        role=BrokerRole.SYNC_MASTER,
        has_pool=False,
        first_transfer=FirstTransfer.FIRST_FILE,
        in_sync_replicas=1,
        is_host_shared=False,
        slave_count=dice.pick_weighted(((2, 1), (3, 2))),
        controller_count=dice.pick_weighted(((1, 1), (3, 3))),
        fault_names=draw_faults(dice, FAULTS),
        producer_refresh_s=dice.pick_weighted(((1, 2.0), (1, 30.0))),  # a hurried TandemMQ client, or Java's
        latency_ms=dice.pick_weighted(((3, settings.latency_ms), (1, FAR_MS))),
    )
