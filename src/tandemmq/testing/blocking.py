"""BlockingCluster: for tests without an event loop; a thin facade over `Cluster`.

    with BlockingCluster(slave=True) as cluster, cluster.producer() as producer:
        producer.send(Message(topic="Orders", body=b"order 1"))
        cluster.lose_master()

It runs in the thread that the blocking clients share, so tests with an event loop may use it, too. May be
used from several threads. The meaning of everything is that of `Cluster`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.client import BlockingConsumer, BlockingProducer, ConsumerOptions, ProducerOptions
from tandemmq.client.blocking import Facade
from tandemmq.testing.cluster import CLIENT, Cluster, consumer_options


class BlockingCluster(Facade[Cluster]):
    """See `Cluster`."""

    def __init__(
        self,
        *,
        slave: bool = False,
        elected: bool = False,
        settings: Mapping[str, object] | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(lambda: Cluster(slave=slave, elected=elected, settings=settings, port=port))

    @property
    def name_servers(self) -> str:
        """Where clients of any language begin, `host:port`."""
        return self._running.name_servers

    @property
    def master_address(self) -> str:
        """Where the master listens, also while it is lost."""
        return self._running.master_address

    @property
    def slave_address(self) -> str:
        """Where the slave listens, also while it is stopped."""
        return self._running.slave_address

    @property
    def controller_address(self) -> str:
        """Where the controller of an elected cluster listens, for `tandemmq admin`."""
        return self._running.controller_address

    def producer(
        self, group: str = "test-producer", *, options: ProducerOptions | None = None
    ) -> BlockingProducer:
        """A producer of this cluster, not started: `with` starts it."""
        return BlockingProducer(group, self.name_servers, options=options or ProducerOptions(client=CLIENT))

    def consumer(
        self, topic: str, group: str = "test-consumer", *, options: ConsumerOptions | None = None
    ) -> BlockingConsumer:
        """A consumer of all messages of the topic, from the first one on, not started."""
        consumer = BlockingConsumer(group, self.name_servers, options=options or consumer_options())
        consumer.subscribe(topic)
        return consumer

    def create_topic(self, topic: str, *, queue_count: int = 4) -> None:
        """The topic is in the routes, and on the slave if it runs."""
        self._call(self._running.create_topic(topic, queue_count=queue_count))

    def lose_master(self) -> None:
        """The master is gone as by SIGKILL."""
        self._call(self._running.lose_master())

    def restart_master(self) -> None:
        """The master ends in order, if it runs, and starts again."""
        self._call(self._running.restart_master())

    def stop_slave(self) -> None:
        """The slave ends in order."""
        self._call(self._running.stop_slave())

    def start_slave(self) -> None:
        """The slave runs again, and has what it missed."""
        self._call(self._running.start_slave())

    def delay_acks(self, seconds: float) -> None:
        """The slave's acknowledgements reach the master so much later; 0 ends it."""
        self._call(self._running.delay_acks(seconds))

    def delay_answers(self, seconds: float) -> None:
        """The brokers' answers leave so much later; 0 ends it."""
        self._call(self._running.delay_answers(seconds))

    def cut_connections(self) -> None:
        """Every connection of every server breaks once."""
        self._call(self._running.cut_connections())

    def fill_disk(self) -> None:
        """The brokers' disks are full."""
        self._call(self._running.fill_disk())

    def free_disk(self) -> None:
        """The disks have room again."""
        self._call(self._running.free_disk())

    def heal(self) -> None:
        """Every fault ends."""
        self._call(self._running.heal())
