"""BlockingCluster: a test cluster without an event loop; a thin facade of `Cluster`.

    with BlockingCluster(slave=True) as cluster, cluster.producer() as producer:
        producer.send(Message(topic="Orders", body=b"order 1"))
        cluster.lose_master()

It runs in the thread that the blocking clients share, so tests with an event loop may use it, too. Several
threads may share it. The methods behave as those of `Cluster`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from tandemmq.client import BlockingConsumer, BlockingProducer, ConsumerOptions, ProducerOptions
from tandemmq.client.blocking import Facade, blocking
from tandemmq.testing.cluster import Cluster, consumer_options, producer_options
from tandemmq.testing.outside import OutsideCluster


class BlockingCluster(Facade[Cluster]):
    """The blocking facade of `Cluster`."""

    def __init__(
        self,
        *,
        slave: bool = False,
        elected: bool = False,
        settings: Mapping[str, object] | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(lambda: Cluster(slave=slave, elected=elected, settings=settings, port=port))

    @classmethod
    def outside(cls, name_servers: str) -> Self:
        """Returns the cluster that runs at `name_servers`, see `OutsideCluster`."""
        cluster = cls()
        cluster._make = lambda: OutsideCluster(name_servers)
        return cluster

    @property
    def name_servers(self) -> str:
        """The address for clients of any language, `host:port`."""
        return self._running.name_servers

    @property
    def master_address(self) -> str:
        """The address of the master, also while it is lost."""
        return self._running.master_address

    @property
    def slave_address(self) -> str:
        """The address of the slave, also while it is stopped."""
        return self._running.slave_address

    @property
    def controller_address(self) -> str:
        """The address of an elected cluster's controller, for `tandemmq admin`."""
        return self._running.controller_address

    def producer(
        self, group: str = "test-producer", *, options: ProducerOptions | None = None
    ) -> BlockingProducer:
        """Returns a producer of this cluster, not started: `with` starts it."""
        return BlockingProducer(group, self.name_servers, options=options or producer_options())

    def consumer(
        self, topic: str, group: str = "test-consumer", *, options: ConsumerOptions | None = None
    ) -> BlockingConsumer:
        """Returns a consumer of all messages of the topic, from the first one on, not started."""
        consumer = BlockingConsumer(group, self.name_servers, options=options or consumer_options())
        consumer.subscribe(topic)
        return consumer

    create_topic = blocking(Cluster.create_topic)
    """Creates a topic; returns once it is in the routes, and on the slave if that runs."""
    published = blocking(Cluster.published)
    """Returns the messages that the topic has now, in the order in which they were stored."""
    travel = blocking(Cluster.travel)
    """Sets the clocks of this process' servers and clients ahead by `seconds`."""
    lose_master = blocking(Cluster.lose_master)
    """Ends the master as SIGKILL would."""
    restart_master = blocking(Cluster.restart_master)
    """Stops the master, if it runs, and starts it again."""
    stop_slave = blocking(Cluster.stop_slave)
    """Stops the slave in an orderly way."""
    start_slave = blocking(Cluster.start_slave)
    """Starts the slave; returns once it has caught up."""
    delay_acks = blocking(Cluster.delay_acks)
    """Delays the slave's acknowledgements to the master by `seconds`; 0 ends the delay."""
    delay_answers = blocking(Cluster.delay_answers)
    """Delays the brokers' answers by `seconds`; 0 ends the delay."""
    cut_connections = blocking(Cluster.cut_connections)
    """Breaks every connection of every server once."""
    fill_disk = blocking(Cluster.fill_disk)
    """Makes the brokers' disks full."""
    free_disk = blocking(Cluster.free_disk)
    """Gives the disks room again."""
    heal = blocking(Cluster.heal)
    """Ends every fault."""
