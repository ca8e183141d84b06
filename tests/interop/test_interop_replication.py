"""A Java slave of our master, and our slave of a Java master, over more than two log files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clusters import JavaBroker, OurBroker, java_cluster, our_cluster
from java_peers import EVERY_LINE
from loads import COUNT, LOG_FILE_BYTES, SMALL_FILES, check_equal_logs, commit, drain, fill, wait_for_copy
from tally import BOTH

from waits import until_blocking

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400), pytest.mark.interop_case(column=BOTH)]

NAME = "broker-r"
GROUP = "replica-group"
MASTER = {**SMALL_FILES, "brokerId": 0, "brokerRole": "SYNC_MASTER", "slaveReadEnable": "true"}
SLAVE = {**SMALL_FILES, "brokerId": 1, "brokerRole": "SLAVE", "slaveReadEnable": "true"}
Broker = OurBroker | JavaBroker


def has_tables(slave: Broker, topic: str) -> bool:
    """The slave has the topic, the group and its offsets from its master."""
    config = slave.store / "config"
    try:
        topics = json.loads((config / "topics.json").read_text())["topicConfigTable"]
        groups = json.loads((config / "subscriptionGroup.json").read_text())["subscriptionGroupTable"]
        offsets = (config / "consumerOffset.json").read_text()
    except (OSError, ValueError):
        return False
    return (
        topics.get(topic, {}).get("readQueueNums") == 4 and GROUP in groups and f"{topic}@{GROUP}" in offsets
    )


@pytest.mark.parametrize("line", EVERY_LINE)
@pytest.mark.parametrize("master_maker", ["ours", "java"])
def test_slave_of_the_other_maker(tmp_path: Path, line: str, master_maker: str) -> None:
    java = EVERY_LINE[line]
    # In 4.x a synchronous master always waits for one slave and has no such setting.
    copies = {} if (line, master_maker) == ("4.9", "java") else {"inSyncReplicas": 2}
    is_ours = master_maker == "ours"
    with our_cluster(tmp_path) if is_ours else java_cluster(java, tmp_path) as cluster:
        master_settings = {**MASTER, **copies, "storePathRootDir": tmp_path / "master"}
        slave_settings = {**SLAVE, "storePathRootDir": tmp_path / "slave"}
        master: Broker
        slave: Broker
        if is_ours:
            master = cluster.start_ours(NAME, master_settings)
            slave = cluster.start_java(java, NAME, slave_settings)
        else:
            master = cluster.start_java(java, NAME, master_settings)
            slave = cluster.start_ours(NAME, slave_settings)
        until_blocking(lambda: fill(cluster, "First", [0]) == [], "a send waits for the slave and finds it")

        assert fill(cluster, "Load", range(COUNT)) == []
        commit(cluster, "Load", GROUP)
        end = wait_for_copy(cluster.name_server, master, slave)
        assert end > 2 * LOG_FILE_BYTES
        check_equal_logs(master, slave, end)
        until_blocking(lambda: has_tables(slave, "Load"), "the slave has the tables")

        slave.kill()
        fill(cluster, "Load", range(COUNT, COUNT + 1000), is_waited_for=False)
        slave.start()
        end = wait_for_copy(cluster.name_server, master, slave)
        check_equal_logs(master, slave, end)
        until_blocking(lambda: fill(cluster, "First", [1]) == [], "a send waits for the slave again")

        master.stop()
        assert drain(cluster, java, "Load", tmp_path / "home") == [*range(COUNT + 1000)]
