"""The options of a proxy in the process of a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.broker.options import BrokerConfig
from tandemmq.config.inner_proxy import inner_proxy_config
from tandemmq.config.load import MachineFacts, load_broker, read_settings
from tandemmq.errors import ConfigError

MACHINE = MachineFacts(host_name="box", address="10.1.2.3", memory_bytes=8 << 30, home=Path("/home/u"))


def load(*settings: str) -> BrokerConfig:
    return load_broker(read_settings(None, settings), MACHINE)


def test_the_proxy_listens_where_the_broker_does() -> None:
    config = load("enableProxy=true", "namesrvAddr=10.0.0.1:9876;10.0.0.2:9876", "brokerClusterName=C")
    assert config.proxy.is_enabled
    options = inner_proxy_config(config).options
    assert (options.listen_host, options.listen_port, options.local_host) == ("0.0.0.0", 8081, "10.1.2.3")
    assert (options.name_servers, options.cluster) == ("10.0.0.1:9876;10.0.0.2:9876", "C")
    assert options.store_path == Path("/home/u/store/proxy")
    assert options.worker_count == 1


def test_the_proxy_has_the_brokers_limits_and_access_control(tmp_path: Path) -> None:
    for name in ("crt", "key"):
        (tmp_path / name).write_text("")
    config = load(
        "enableProxy=true",
        "namesrvAddr=127.0.0.1:9876",
        "grpcServerPort=0",
        "bindAddress=127.0.0.1",
        "maxMessageSize=1024",
        "authenticationEnabled=true",
        "authorizationEnabled=true",
        'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"12345678"}',
        f"tls.server.certPath={tmp_path / 'crt'}",
        f"tls.server.keyPath={tmp_path / 'key'}",
    )
    made = inner_proxy_config(config)
    options = made.options
    assert (options.listen_port, options.local_host, options.body_bytes_max) == (0, "127.0.0.1", 1024)
    assert (options.authentication_enabled, options.authorization_enabled) == (True, True)
    assert made.tls is config.tls
    assert made.credentials is not None
    assert made.credentials.access_key == "inner"


def test_a_proxy_needs_a_name_server() -> None:
    with pytest.raises(ConfigError, match="enableProxy=true needs namesrvAddr"):
        load("enableProxy=true")
    assert not load().proxy.is_enabled
