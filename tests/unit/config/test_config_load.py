"""Loading options from settings: valid settings, and the reports of mistakes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.broker.options import BrokerConfig
from tandemmq.config.load import (
    MachineFacts,
    load_broker,
    load_name_server,
    load_proxy,
    read_settings,
    with_saved_settings,
)
from tandemmq.config.names import (
    ALIASES,
    BROKER_INERT,
    BROKER_KEYS,
    NAMESERVER_INERT,
    NAMESERVER_KEYS,
    REFUSED,
)
from tandemmq.errors import ConfigError
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.settings import render_options
from tandemmq.replication.core.options import FirstTransfer
from tandemmq.store.options import BrokerRole, FlushMode
from tandemmq.telemetry.export_options import MetricsExporter

MACHINE = MachineFacts(
    host_name="box.example.org", address="10.1.2.3", memory_bytes=8 << 30, home=Path("/home/u")
)


def load(*settings: str, machine: MachineFacts = MACHINE) -> BrokerConfig:
    return load_broker(read_settings(None, settings), machine)


def test_defaults_are_rocketmqs_and_the_machines() -> None:
    config = load()
    assert (config.broker.broker_name, config.broker.cluster_name) == ("box", "DefaultCluster")
    assert (config.broker.advertised_host, config.broker.listen_port) == ("10.1.2.3", 10911)
    assert config.store.store_host == encode_host("10.1.2.3", 10911)
    assert (config.store.root, config.store.memory_bytes) == (Path("/home/u/store"), 8 << 30)
    assert (config.store.role, config.store.flush_mode) == (BrokerRole.ASYNC_MASTER, FlushMode.ASYNC_FLUSH)
    assert (config.inert, config.notes, config.broker.name_servers) == ((), (), ())


def test_a_host_name_is_announced_and_its_number_is_in_message_ids() -> None:
    machine = replace(MACHINE, resolve={"b1.example": "2001:db8::1"}.__getitem__)
    config = load(
        "brokerIP1=b1.example",
        "advertisedAddresses=six=[2001:DB8::7]:1; public=b1.example.org:20911",
        machine=machine,
    )
    assert config.broker.advertised_host == "b1.example"
    assert config.store.store_host == encode_host("2001:db8::1", 10911)
    assert config.broker.advertised_addresses == "six=[2001:db8::7]:1;public=b1.example.org:20911"


def test_a_machine_without_ipv4_listens_on_both_families() -> None:
    config = load(machine=replace(MACHINE, address="2001:db8::1"))
    assert (config.broker.listen_host, config.broker.advertised_host) == ("::", "2001:db8::1")
    assert load_name_server({}, listen_host="::").options.listen_host == "::"


def test_settings_reach_their_parts() -> None:
    config = load(
        "brokerRole=SLAVE",
        "brokerId=1",
        "brokerName=b0",
        "brokerClusterName=c0",
        "listenPort=0",
        "haListenPort=4000",
        "brokerIP1=192.168.0.1",
        "brokerIP2=192.168.0.2",
        "bindAddress=127.0.0.1",
        "namesrvAddr=a:1; b:2;",
        "haMasterAddress=m:10912",
        "storePathRootDir=/data",
        "storePathCommitLog=/log",
        "flushDiskType=sync_flush",
        "mappedFileSizeCommitLog=1048576",
        "inSyncReplicas=2",
        "totalReplicas=3",
        "minInSyncReplicas=2",
        "slaveTimeout=100",
        "syncFlushTimeout=200",
        "autoCreateTopicEnable=false",
        "autoCreateSubscriptionGroup=FALSE",
        "defaultTopicQueueNums=16",
        "slaveReadEnable=true",
        "accessMessageInMemoryMaxRatio=50",
        "maxMessageSize=1000",
        "haTransferBatchSize=65536",
        "haSendHeartbeatInterval=10",
        "haHousekeepingInterval=50",
        "haSlaveFallbehindMax=77",
        "haFirstTransfer=FIRST_FILE",
        "longPollingEnable=false",
        "deleteWhen=04;16",
        "messageDelayLevel=1s 1m",
        "diskMaxUsedSpaceRatio=99",
        "flushIntervalCommitLog=7",
    )
    broker, store, replication = config.broker, config.store, config.replication
    assert (broker.broker_id, broker.broker_name, broker.cluster_name) == (1, "b0", "c0")
    assert (broker.listen_host, broker.listen_port, broker.ha_listen_port) == ("127.0.0.1", 0, 4000)
    assert (broker.advertised_host, broker.ha_advertised_host) == ("192.168.0.1", "192.168.0.2")
    assert (broker.name_servers, broker.ha_master_address) == (("a:1", "b:2"), "m:10912")
    assert (broker.auto_create_topic, broker.auto_create_group) == (False, False)
    assert (broker.default_topic_queue_count, broker.slave_read_enable) == (16, True)
    assert broker.long_polling_enable is False
    assert (store.role, store.flush_mode) == (BrokerRole.SLAVE, FlushMode.SYNC_FLUSH)
    assert (store.root, store.log_dir, store.commit_log_file_bytes) == (Path("/data"), Path("/log"), 1048576)
    assert (store.in_sync_replicas, store.slave_timeout_ms, store.sync_flush_timeout_ms) == (2, 100, 200)
    assert (store.access_message_in_memory_ratio, store.message_bytes_max) == (50, 1000)
    assert (store.delete_at_hours, store.delay_levels_ms) == ((4, 16), (1000, 60_000))
    assert (store.disk_used_percent_max, store.flush_interval_ms) == (95, 7)
    assert replication.transfer_bytes_max == 65536
    assert (replication.heartbeat_interval_ms, replication.silence_ms_max) == (10, 50)
    assert replication.in_sync_gap_bytes_max == store.replica_gap_bytes_max == 77
    assert replication.first_transfer is FirstTransfer.FIRST_FILE


def test_metrics_exporter_is_off_unless_asked_for() -> None:
    off = load("metricsExporterType=DISABLE", "metricsPromExporterHost=", "metricsPromExporterPort=5557")
    assert off.broker == load().broker
    assert off.broker.metrics_exporter is MetricsExporter.DISABLE
    broker = load(
        "metricsExporterType=prom", "metricsPromExporterHost=127.0.0.1", "metricsPromExporterPort=0"
    ).broker
    assert broker.metrics_exporter is MetricsExporter.PROM
    assert (broker.metrics_host, broker.metrics_port) == ("127.0.0.1", 0)


def test_metrics_are_pushed_if_asked() -> None:
    options = load(
        "metricsExporterType=1",
        "metricsGrpcExporterTarget=127.0.0.1:4317",
        "metricsGrpcExporterHeader=api-key:s3cret",
        "metricsLabel=zone:a",
        "metricsInDelta=true",
    ).broker
    assert options.metrics_exporter is MetricsExporter.OTLP_GRPC
    assert (options.otlp_target, options.otlp_headers) == ("127.0.0.1:4317", "api-key:s3cret")
    assert (options.metric_labels, options.in_delta) == ("zone:a", True)
    assert "s3cret" not in repr(options)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("metricsExporterType=4", "metricsExporterType=4: must be one of DISABLE, OTLP_GRPC"),
        ("metricsGrpcExporterTarget=ftp://a/b", "must be the address of a collector"),
        ("metricsGrpcExporterHeader=secret", r"metricsGrpcExporterHeader=\*\*\*: must be name:value"),
        ("metricsLabel=a=b", "metricsLabel=a=b: must be name:value"),
        ("metricsLabel=zone-1:a", "metricsLabel=zone-1:a: must be .* ASCII letters, digits and _"),
        ("metricsLabel=zone:a,1st:b", "does not begin with a digit"),
        ("metricsLabel=__zone:a", "or __,"),
        ("metricsLabel=zone:a,topic:b", "is not a label that a metric has, such as cluster, topic"),
        ("metricsLabel=peer_id:a", "is not a label that a metric has"),
        ("metricsLabel=le:1", "is not a label that a metric has"),
        ("metricsLabel=aggregation:a", "is not a label that a metric has"),
    ],
)
def test_a_push_that_cannot_work_is_told(setting: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(setting)


def test_slave_can_take_the_largest_record_of_its_limits() -> None:
    config = load("maxMessageSize=16000000")
    assert config.replication.record_bytes_max >= config.store.record_bytes_max


def test_bound_address_is_advertised_unless_it_is_any() -> None:
    assert load("bindAddress=127.0.0.1").broker.advertised_host == "127.0.0.1"
    assert load("bindAddress=0.0.0.0").broker.advertised_host == "10.1.2.3"
    assert load("bindAddress=127.0.0.1", "brokerIP1=::1").broker.advertised_host == "::1"


def test_name_servers_of_the_environment_are_the_weakest() -> None:
    machine = MachineFacts(
        host_name="?", address="10.1.2.3", memory_bytes=1, home=Path("/"), name_servers="e:1"
    )
    config = load(machine=machine)
    assert (config.broker.name_servers, config.broker.broker_name) == (("e:1",), "broker-a")
    assert load("namesrvAddr=a:1", machine=machine).broker.name_servers == ("a:1",)


def test_broken_name_servers_of_the_environment_are_told() -> None:
    machine = MachineFacts(
        host_name="b", address="10.1.2.3", memory_bytes=1, home=Path("/"), name_servers="e"
    )
    with pytest.raises(ConfigError, match="NAMESRV_ADDR=e: must be host:port"):
        load(machine=machine)


def test_override_is_stronger_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=a\nbrokerId = 0\n# comment\nlistenPort=1234\n")
    config = load_broker(read_settings(path, ["listenPort=4321"]), MACHINE)
    assert (config.broker.broker_name, config.broker.listen_port) == ("a", 4321)


def test_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.conf: cannot be read: No such file"):
        read_settings(tmp_path / "none.conf", [])


@pytest.mark.parametrize("argument", ["", "a", "=b", " =b"])
def test_override_without_key_or_value_is_told(argument: str) -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        read_settings(None, [argument])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "defaultTopicQueueNum=4",
            "--set: unknown broker setting defaultTopicQueueNum; did you mean defaultTopic",
        ),
        ("brokername=x", "did you mean brokerName?"),
        ("zzzz=1", "--set: unknown broker setting zzzz"),
        ("kvConfigPath=/x", "unknown broker setting kvConfigPath; it is a setting of the name server"),
        ("listenPort=x", "--set: listenPort=x: must be a whole number from 0 to 65535"),
        ("listenPort=65536", "must be a whole number from 0 to 65535"),
        ("listenPort=", "listenPort=: must be a whole number"),
        ("autoCreateTopicEnable=yes", "autoCreateTopicEnable=yes: must be true or false"),
        ("flushDiskType=X", "must be one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("brokerIP1=a b", "must be an IPv4 or IPv6 address, or a host name"),
        ("brokerIP1=10.0.0.300", "must be an IPv4 or IPv6 address, or a host name"),
        ("brokerIP1=no-such-host", "message ids need its numeric address"),
        ("advertisedAddresses=public", "must be NETWORK=host:port, several separated by ;"),
        ("brokerName=a b", "brokerName=a b: must be 1 to 127 of the characters"),
        ("namesrvAddr=a:1;b", "must be host:port, several separated by ;"),
        ("namesrvAddr=a:0", "must be host:port"),
        ("haMasterAddress=a:70000", "must be host:port, or empty"),
        ("storePathCommitLog=/a,/b", "one directory"),
        ("deleteWhen=24", "hours from 00 to 23"),
        ("deleteWhen=x", "hours from 00 to 23"),
        ("messageDelayLevel=1y", "delays such as"),
        ("mappedFileSizeCommitLog=3000000000", "from 256 to 2147483647"),
        ("inSyncReplicas=3 totalReplicas=2", "inSyncReplicas=3 can never be reached with totalReplicas=2"),
        ("minInSyncReplicas=2", "minInSyncReplicas=2 must not be above inSyncReplicas=1"),
        ("brokerRole=SLAVE", "brokerRole=SLAVE needs a brokerId above 0"),
        (
            "haHousekeepingInterval=1",
            "--set: haSendHeartbeatInterval: 5000 must be below haHousekeepingInterval 1",
        ),
        ("haTransferBatchSize=99999999", "haTransferBatchSize=99999999: must be a whole number from 1 to"),
        ("listenPort=1", "--set: listenPort: 1 leaves no port"),
        (
            "authorizationEnabled=true",
            "--set: authorizationEnabled needs authenticationEnabled: else anybody could take any name",
        ),
        ("initAuthenticationUser=root:12345678", "--set: initAuthenticationUser=***: must be JSON such as"),
        ("authenticationWhitelist=10,x", "authenticationWhitelist=10,x: must be request codes"),
        ("enableControllerMode=true", "controllerAddr: must not be empty in controller mode"),
        ("storeType=defaultRocksDB", "only default is allowed"),
        ("readOnlyCommitLogStorePaths=/x", "it must be empty"),
    ],
)
def test_mistakes_are_told_with_place_key_and_what_is_allowed(settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(*re.split(r" (?=\w+=)", settings))


def test_place_in_a_file_is_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=a\nlistenPort=x\n")
    with pytest.raises(ConfigError, match=r"broker\.conf, line 2: listenPort=x"):
        load_broker(read_settings(path, []), MACHINE)


def test_harmless_values_of_what_is_not_served_are_accepted() -> None:
    settings = [f"{key}={served}" for key, (served, _) in REFUSED.items()]
    assert load(*settings).inert == ()


def test_keys_without_effect_are_named_unless_they_repeat_the_default() -> None:
    config = load("transferMsgByHeap=false", "sendMessageThreadPoolNums=4", "highSpeedMode=false")
    assert config.inert == ("transferMsgByHeap", "sendMessageThreadPoolNums")


def test_every_key_of_rocketmq_starts_with_its_default() -> None:
    settings = [f"{key}={default}" for key, default in BROKER_INERT.items() if default is not None]
    assert len(BROKER_INERT) > 280
    assert load(*settings).inert == ()
    assert load_name_server(read_settings(None, [f"{key}=1" for key in NAMESERVER_INERT])).inert


def test_master_has_id_zero_whatever_the_file_says() -> None:
    config = load("brokerRole=SYNC_MASTER", "brokerId=3")
    assert config.broker.broker_id == 0
    assert config.notes == ("brokerId=3 is taken as 0, because brokerRole=SYNC_MASTER is a master's",)


def test_no_key_has_two_meanings() -> None:
    assert not BROKER_KEYS.keys() & (BROKER_INERT.keys() | REFUSED.keys() | ALIASES.keys())
    assert not BROKER_INERT.keys() & (REFUSED.keys() | ALIASES.keys())
    assert not NAMESERVER_KEYS.keys() & NAMESERVER_INERT.keys()


def test_every_key_sets_fields_that_exist() -> None:
    config = load()
    parts = {
        "broker": config.broker,
        "store": config.store,
        "replication": config.replication,
        "election": config.election,
        "access": config.access,
        "tls": config.tls,
        "inner_proxy": config.proxy,
    }
    for key in BROKER_KEYS.values():
        for name in key.fields:
            part, _, field = name.partition(".")
            assert hasattr(parts[part], field), name


def test_name_server_is_configured(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("listenPort=0\nkvConfigPath=/kv.json\nclusterTest=true\norderMessageEnable=true")
    config = load_name_server(read_settings(path, ["bindAddress=127.0.0.1"]), path)
    assert (config.options.listen_host, config.options.listen_port) == ("127.0.0.1", 0)
    assert (config.options.kv_config_path, config.options.config_store_path) == (Path("/kv.json"), path)
    assert (config.options.order_message_enable, config.inert) == (True, ("clusterTest",))
    assert load_name_server({}).options.listen_port == 9876


def test_name_server_signs_with_credentials_that_nothing_shows() -> None:
    key = "innerClientAuthenticationCredentials"
    config = load_name_server(read_settings(None, [f'{key}={{"accessKey":"inner","secretKey":"hidden"}}']))
    assert config.credentials == Credentials("inner", "hidden")
    assert load_name_server({}).credentials is None
    assert "hidden" not in repr(config)
    assert b"inner" not in render_options(config.options)
    with pytest.raises(ConfigError, match=f"{key}=\\*\\*\\*: must be JSON") as refused:
        load_name_server(read_settings(None, [f"{key}=hidden"]))
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("brokerName=x", "unknown name server setting brokerName; it is a setting of the broker"),
        ("listenPorts=1", "did you mean listenPort?"),
        ("scanNotActiveBrokerInterval=0", "must be a whole number from 1"),
    ],
)
def test_name_servers_mistakes_are_told(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_name_server(read_settings(None, [setting]))


def test_changes_of_earlier_runs_of_a_name_server_hold_where_nothing_else_is_said(tmp_path: Path) -> None:
    kept = tmp_path / "kept.properties"
    kept.write_text("enableTopicList=false\norderMessageEnable=true\nlistenPort=1\nkvConfigPath=/etc/x\n")
    given = read_settings(None, [f"configStorePath={kept}", "orderMessageEnable=false"])
    options = load_name_server(with_saved_settings(given, None)).options
    assert (options.topic_list_enable, options.order_message_enable) == (False, False)
    assert (options.listen_port, options.kv_config_path.name) == (9876, "kvConfig.json")
    file = tmp_path / "ns.conf"
    file.write_text("enableAllTopicList=false\n")
    assert with_saved_settings(read_settings(file, ()), file).keys() == {"enableAllTopicList"}


def test_a_proxy_reads_rocketmqs_json_file(tmp_path: Path) -> None:
    path = tmp_path / "rmq-proxy.json"
    path.write_text(
        '{"rocketMQClusterName": "C", "namesrvAddr": "10.0.0.1:9876", "grpcServerPort": 18081,'
        ' "enableTopicMessageTypeCheck": false, "renewAheadTimeMillis": 5000, "grpcBossLoopNum": 1}'
    )
    loaded = load_proxy(read_settings(path, ["maxMessageSize=1024"]), MACHINE)
    options = loaded.options
    assert (options.cluster, options.name_servers, options.listen_port) == ("C", "10.0.0.1:9876", 18081)
    assert (options.checks_message_type, options.body_bytes_max) == (False, 1024)
    assert loaded.inert == ("renewAheadTimeMillis",)  # the other one repeats RocketMQ's default
    assert options.local_host == MACHINE.address
    forwarded = load_proxy(read_settings(None, ["proxyProtocolAddresses=10.0.0.7;::1"]), MACHINE)
    assert forwarded.options.balancers == ("10.0.0.7", "::1")


def test_a_proxy_that_enforces_tls_dials_brokers_without_it_unless_it_is_told() -> None:
    settings = ["tls.server.mode=enforcing", "tlsCertPath=/c.pem", "tlsKeyPath=/k.pem"]
    assert load_proxy(read_settings(None, settings), MACHINE).tls.dialling is None
    assert load_proxy(read_settings(None, [*settings, "useTLS=true"]), MACHINE).tls.dialling is not None


def test_a_proxy_reads_the_settings_of_its_clients() -> None:
    settings = ["metricCollectorMode=on", "metricCollectorAddress=otel:4317", "useDelayLevel=true"]
    settings += [
        "messageDelayLevel=1s 1m",
        "grpcClientProducerBackoffMaxMillis=3000",
        "maxMessageGroupSize=0",
    ]
    options = load_proxy(read_settings(None, settings), MACHINE).options
    assert (options.metric_collector_mode.value, options.metric_collector) == ("on", "otel:4317")
    assert (options.uses_delay_levels, options.delay_levels_ms) == (True, (1_000, 60_000))
    assert (options.producer_backoff_ms_max, options.message_group_bytes_max) == (3_000, 0)


def test_a_proxy_serves_metrics_and_rules_of_files_by_the_keys_of_brokers() -> None:
    plain = load_proxy(read_settings(None, []), MACHINE).options
    assert (plain.name, plain.metrics_exporter, plain.acl_enable) == (
        MACHINE.host_name,
        MetricsExporter.DISABLE,
        False,
    )
    settings = ["metricsExporterType=PROM", "metricsPromExporterPort=0", "proxyName=p1", "enableACL=true"]
    options = load_proxy(read_settings(None, settings), MACHINE).options
    assert (options.metrics_exporter, options.metrics_port, options.name) == (MetricsExporter.PROM, 0, "p1")
    assert (options.acl_enable, options.acl_directory) == (True, MACHINE.rocketmq_home / "conf")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "must be a JSON object"),
        ('{"grpcServerPort": [1]}', "must be a JSON object of texts, numbers and booleans"),
        ('{"grpcServerPort": "x"}', "grpcServerPort=x: must be a whole number from 0 to 65535"),
        ('{"grpcServerPorts": 1}', "unknown proxy setting grpcServerPorts; did you mean grpcServerPort?"),
        ('{"namesrvAddr": ""}', "namesrvAddr=: must be host:port"),
        ('{"metricCollectorMode": "on"}', "metricCollectorMode=on needs metricCollectorAddress=host:port"),
        ('{"metricCollectorMode": "proxy"}', "metricCollectorMode=proxy: must be one of OFF, ON"),
        ('{"minInvisibleTimeMillsForRecv": 9, "maxInvisibleTimeMills": 5}', "minInvisibleTimeMillsForRecv=9"),
    ],
)
def test_a_bad_setting_of_a_proxy_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "rmq-proxy.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(reason)):
        load_proxy(read_settings(path, []), MACHINE)
