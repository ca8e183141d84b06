"""The keys of pool and segments, from a properties file to the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.broker.options import BrokerConfig
from tandemmq.config.load import MachineFacts, load_broker, read_settings
from tandemmq.errors import ConfigError
from tandemmq.store import FlushMode, StoreOptions

MACHINE = MachineFacts(host_name="box", address="10.1.2.3", memory_bytes=8 << 30, home=Path("/home/u"))


def load(*settings: str) -> BrokerConfig:
    return load_broker(read_settings(None, settings), MACHINE)


def test_defaults_are_rocketmqs() -> None:
    """Spec store 20."""
    store = load().store
    assert (store.transient_pool_enable, store.transient_pool_size) == (False, 5)
    assert store.fail_fast_without_buffer is False
    assert (store.commit_interval_ms, store.commit_least_pages, store.commit_thorough_interval_ms) == (
        200,
        4,
        200,
    )
    assert (store.warm_segments, store.warm_flush_pages, store.read_ahead_enable) == (False, 4096, True)
    assert store.page_cache_busy_ms == 1000
    assert not store.uses_transient_pool


def test_settings_reach_the_store_and_none_of_them_is_inert() -> None:
    config = load(
        "transientStorePoolEnable=true",
        "transientStorePoolSize=2",
        "fastFailIfNoBufferInStorePool=true",
        "commitIntervalCommitLog=50",
        "commitCommitLogLeastPages=0",
        "commitCommitLogThoroughInterval=70",
        "warmMapedFileEnable=true",
        "flushLeastPagesWhenWarmMapedFile=16",
        "dataReadAheadEnable=false",
        "osPageCacheBusyTimeOutMills=300",
        "mappedBytesMax=1000000",
    )
    assert (config.inert, config.notes) == ((), ())
    assert config.store.uses_transient_pool
    expected = StoreOptions(
        root=config.store.root,
        store_host=config.store.store_host,
        memory_bytes=8 << 30,
        transient_pool_enable=True,
        transient_pool_size=2,
        fail_fast_without_buffer=True,
        commit_interval_ms=50,
        commit_least_pages=0,
        commit_thorough_interval_ms=70,
        warm_segments=True,
        warm_flush_pages=16,
        read_ahead_enable=False,
        page_cache_busy_ms=300,
        mapped_bytes_max=1_000_000,
    )
    assert config.store == expected


@pytest.mark.parametrize(
    ("setting", "is_on", "note"),
    [
        ("flushDiskType=SYNC_FLUSH", False, "flushDiskType"),
        ("writeWithoutMmap=true", False, "writeWithoutMmap"),
        ("brokerRole=SLAVE", True, "slave"),
        ("brokerRole=SYNC_MASTER", True, ""),
    ],
)
def test_where_the_pool_has_no_effect_the_operator_is_told(setting: str, is_on: bool, note: str) -> None:
    config = load("transientStorePoolEnable=true", "brokerId=1", setting)
    assert config.store.transient_pool_enable is is_on
    notes = [text for text in config.notes if text.startswith("transientStorePoolEnable")]
    assert len(notes) == bool(note)
    assert note in "".join(notes)


def test_a_pool_needs_a_buffer() -> None:
    with pytest.raises(ConfigError, match="transientStorePoolSize"):
        load("transientStorePoolSize=0")


def test_with_sync_flush_the_options_alone_rule_the_pool_out() -> None:
    options = StoreOptions(root=Path("/s"), transient_pool_enable=True, flush_mode=FlushMode.SYNC_FLUSH)
    assert not options.uses_transient_pool
