"""The OpenTelemetry resource of this process: the attributes that its metrics and its spans share."""

from __future__ import annotations

from tandemmq import __version__
from tandemmq.runtime.machine import instance_id


def resource_of(server: str) -> dict[str, str]:
    """Returns the attributes of a kind of server, such as `broker`."""
    return {
        "service.name": f"tandemmq-{server}",
        "service.version": __version__,
        "service.instance.id": instance_id(),
    }
