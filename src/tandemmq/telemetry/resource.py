"""The OpenTelemetry resource of this process: the attributes that its metrics and its spans share."""

from __future__ import annotations

import functools
import uuid

from tandemmq import __version__


@functools.cache
def instance_id() -> str:
    """Returns the `service.instance.id` of this process: random, and the same until the process ends."""
    return str(uuid.uuid4())


def resource_of(server: str) -> dict[str, str]:
    """Returns the attributes of a kind of server, such as `broker`."""
    return {
        "service.name": f"tandemmq-{server}",
        "service.version": __version__,
        "service.instance.id": instance_id(),
    }
