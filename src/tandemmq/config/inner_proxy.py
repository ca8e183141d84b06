"""The options of a proxy in the process of a broker (`tandemmq broker --proxy`), from those of the broker."""

from __future__ import annotations

from tandemmq.broker.options import BrokerConfig
from tandemmq.proxy.options import ProxyConfig, ProxyOptions


def inner_proxy_config(config: BrokerConfig) -> ProxyConfig:
    """Returns the options of the proxy. It listens where the broker does, on a port of its own, with the same
    TLS, access control and limit of messages, and finds brokers by the broker's name servers.
    """
    broker, access = config.broker, config.access
    options = ProxyOptions(
        listen_host=broker.listen_host,
        listen_port=config.proxy.port,
        local_host=broker.advertised_host,
        name_servers=";".join(broker.name_servers),
        cluster=broker.cluster_name,
        store_path=config.store.root / "proxy",
        body_bytes_max=config.store.message_bytes_max,
        acl_enable=access.acl_enable,
        acl_directory=access.acl_directory,
        authentication_enabled=access.authentication_enabled,
        authorization_enabled=access.authorization_enabled,
    )
    return ProxyConfig(options=options, tls=config.tls, credentials=access.inner_credentials)
