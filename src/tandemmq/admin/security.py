"""What the tools sign with and whether they speak TLS: from RocketMQ's places, and the environment."""

from __future__ import annotations

import os
from pathlib import Path

from tandemmq.broker.access.plain_files import read_tools_credentials
from tandemmq.client.options import ClientOptions
from tandemmq.remoting.tls_options import TlsClientOptions
from tandemmq.runtime.disk import RealDisk

CALL_TIMEOUT_S = 5.0
TRUST_VARIABLE = "TANDEMMQ_TLS_CA"


def tools_options() -> ClientOptions:
    """Signed with $ROCKETMQ_HOME/conf/tools.yml when it is there; TLS when TANDEMMQ_TLS_CA names the
    certificates to trust.

    Raises:  ConfigError for a tools.yml that cannot be used.
    """
    home, trust = os.environ.get("ROCKETMQ_HOME"), os.environ.get(TRUST_VARIABLE)
    credentials = read_tools_credentials(Path(home) / "conf", RealDisk()) if home else None
    return ClientOptions(
        call_timeout_s=CALL_TIMEOUT_S,
        access_key="" if credentials is None else credentials.access_key,
        secret_key="" if credentials is None else credentials.secret_key,
        tls=TlsClientOptions(trust_path=Path(trust)) if trust else None,
    )
