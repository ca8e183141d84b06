"""BlockingCluster: a test cluster without an event loop; a thin facade of `Cluster`.

    with BlockingCluster(slave=True) as cluster, cluster.producer() as producer:
        producer.send(Message(topic="Orders", body=b"order 1"))
        cluster.lose_master()

It runs in the thread that the blocking clients share, so tests with an event loop may use it, too. Several
threads may share it. The methods behave as those of `Cluster`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.client import BlockingConsumer, BlockingProducer, ConsumerOptions, ProducerOptions
from tandemmq.client.blocking import Facade
from tandemmq.testing.cluster import CLIENT, Cluster, consumer_options


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
        return BlockingProducer(group, self.name_servers, options=options or ProducerOptions(client=CLIENT))

    def consumer(
        self, topic: str, group: str = "test-consumer", *, options: ConsumerOptions | None = None
    ) -> BlockingConsumer:
        """Returns a consumer of all messages of the topic, from the first one on, not started."""
        consumer = BlockingConsumer(group, self.name_servers, options=options or consumer_options())
        consumer.subscribe(topic)
        return consumer

    def create_topic(self, topic: str, *, queue_count: int = 4) -> None:
        """Creates a topic; returns once it is in the routes, and on the slave if that runs."""
        self._call(self._running.create_topic(topic, queue_count=queue_count))

    def lose_master(self) -> None:
        """Ends the master as SIGKILL would."""
        self._call(self._running.lose_master())

    def restart_master(self) -> None:
        """Stops the master, if it runs, and starts it again."""
        self._call(self._running.restart_master())

    def stop_slave(self) -> None:
        """Stops the slave in an orderly way."""
        self._call(self._running.stop_slave())

    def start_slave(self) -> None:
        """Starts the slave; returns once it has caught up."""
        self._call(self._running.start_slave())

    def delay_acks(self, seconds: float) -> None:
        """Delays the slave's acknowledgements to the master by `seconds`; 0 ends the delay."""
        self._call(self._running.delay_acks(seconds))

    def delay_answers(self, seconds: float) -> None:
        """Delays the brokers' answers by `seconds`; 0 ends the delay."""
        self._call(self._running.delay_answers(seconds))

    def cut_connections(self) -> None:
        """Breaks every connection of every server once."""
        self._call(self._running.cut_connections())

    def fill_disk(self) -> None:
        """Makes the brokers' disks full."""
        self._call(self._running.fill_disk())

    def free_disk(self) -> None:
        """Gives the disks room again."""
        self._call(self._running.free_disk())

    def heal(self) -> None:
        """Ends every fault."""
        self._call(self._running.heal())
