"""The proof of the pipelines: `make spark KILLS=20 ROWS=1000000 SEED=1`.

An outside client publishes all the time and records the acknowledged messages. Meanwhile the landing is
killed repeatedly, first in local mode (`local[2]`), then on a standalone cluster that loses an executor, a
worker and the driver. In the end Spark, pyarrow and the brokers' offsets must count the same rows, and the
audit must find all copies equal, and then each planted fault. A rollup, a history, a replay and a resending
of dead letters are killed, too, and the master under the rollup, and a service of many topics. In addition,
topics of another cluster are deleted, re-created, shrunk and expired under queries, which must report each
message that they cannot read.
Prints

    SPARK OK landed=N distinct=N lost=0 duplicated=0 skipped_in_silence=0 audit=clean topics=N

or SPARK FAILED with the reasons, exits with code 1, and keeps the directory with the logs. The seed
determines the kills; their effects depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from proof_brokers import BROKER, Brokers, running_brokers
from proof_counts import Counts, count_lake, read_numbers
from proof_formats import Declarative, FormatFailed, run_connect
from proof_pipelines import PipelineProof
from proof_plants import Plant, copy_lake, cut_record, double_file, find_middle, flip_bit
from proof_processes import Event, Pipeline, Standalone, kill, standalone
from proof_publisher import Publisher
from proof_service import ServiceProof
from proof_silence import SilenceProof

from bench.spark_read import fill_topic
from tandemmq.spark.lake.check import check_lake
from tandemmq.spark.lake.files import CONTROL_DIR
from tandemmq.spark.pipelines.lake_job import LOG_FILE
from tandemmq.spark.session import build_session

TOPIC, BULK_TOPIC = "Proof", "ProofBulk"
BEHIND = 1000
START_KILL_SHARE = 0.25
"""The share of kills that happen while the landing still starts; the others happen around a batch."""
START_S_MAX, BATCH_S_MAX = 12.0, 1.5
CLUSTER_BATCHES = 3
REST_BATCH_ROWS = 200_000
BULK_BODY_BYTES = 100


class Proof:
    """One run; `reasons` is empty if it succeeded."""

    def __init__(self, directory: Path, brokers: Brokers, publisher: Publisher, options: argparse.Namespace):
        self._directory = directory
        self._spark_log = directory / "spark.log"
        self._brokers = brokers
        self._publisher = publisher
        self._options = options
        self._chance = random.Random(options.seed)
        self._begun_at = time.monotonic()
        self.lake = directory / "lake"
        self._started: list[Pipeline] = []
        self.reasons: list[str] = []
        self.counts: Counts | None = None
        self.is_clean = False
        self.skipped_in_silence: int | None = None
        """The number of messages skipped in silence; None if not checked."""
        self.served: int | None = None
        """The number of topics that a service landed exactly; None if not checked."""

    def run(self) -> None:
        self._prepare()
        with self._publisher.publishing():
            self._kill_landings()
            if self._has("cluster"):
                with standalone(self._directory) as cluster:
                    self._harm_cluster(cluster)
        self._publisher.publish(max(0, self._options.rows - self._publisher.sent))
        self._land_rest()
        self._count()
        if self._has("elsewhere"):
            try:
                self._run_elsewhere()
            except FormatFailed as error:
                self._fail(str(error))
        if self._has("pipelines"):
            self._harm_pipelines()
        if self._has("service"):
            self._harm_service()
        if self._has("silence"):
            self._harm_topics()
        if self._has("audit"):
            self._audit_healthy()
            self._audit_planted()
            self._audit_behind()
        if self._options.audit_rows:
            self._audit_bulk(self._options.audit_rows)

    def _has(self, stage: str) -> bool:
        return stage not in self._options.skip

    def _prepare(self) -> None:
        """Makes the archive of Java's classes for all later sessions."""
        os.environ["XDG_CACHE_HOME"] = str(self._directory / "cache")
        command = [sys.executable, "-m", "tandemmq", "pipeline", "prepare"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        self._print(ended.stdout.strip() or "no archive of Java's classes")
        if ended.returncode:
            self._fail(f"prepare ended with {ended.returncode}: {ended.stderr}")

    def _kill_landings(self) -> None:
        """Kills Python, Java, or all processes of the landing, with SIGKILL."""
        batches = 0
        for number in range(self._options.kills):
            landing = self._land("local[2]")
            if self._chance.random() < START_KILL_SHARE:
                when = "while it starts"
                time.sleep(self._chance.uniform(0, START_S_MAX))
            else:
                first = batches + self._chance.randrange(3)
                found = landing.wait_for(lambda event, first=first: _is_batch(event, first))
                if found is None:
                    self._fail(f"landing {number} did not get to batch {first}: {landing.events[-3:]}")
                when = f"after batch {first}"
                time.sleep(self._chance.uniform(0, BATCH_S_MAX))
            what = self._chance.choice(("driver", "java", "everything"))
            self._kill(landing, what)
            batches = max([batches, *(e["batch"] for e in landing.events if e["event"] == "batch")])
            self._print(f"kill {number + 1}: {what} {when}; {self._publisher.sent:,} sent")

    def _kill(self, landing: Pipeline, what: str) -> None:
        if what == "driver":
            kill(landing.popen.pid)
        elif what == "java":
            landing.kill_java()
            # Its Python side must neither hang nor report success.
            code = landing.end(seconds=60.0)
            if code == 0 or code is None:
                self._fail(f"the landing ended with {code} after its Java was killed")
            return
        # The children of a killed driver must end by themselves soon, and may write until then.
        if what == "driver" and self._chance.random() < 0.5:
            return
        landing.kill_all()

    def _harm_cluster(self, cluster: Standalone) -> None:
        landing = self._land(cluster.url)
        batch = self._wait_batches(landing, -1, "on the cluster")
        executors = cluster.executors()
        self._print(f"standalone cluster: batch {batch}, executors {len(executors)}")
        if len(executors) != 2:
            self._fail(f"2 executors should run, there are {len(executors)}")
        for pid in executors[:1]:
            kill(pid)
        batch = self._wait_batches(landing, batch, "after an executor was killed")
        self._print(f"an executor was killed; batch {batch}")
        cluster.workers[0].kill_all()
        batch = self._wait_batches(landing, batch, "after a worker was killed")
        self._print(f"a worker was killed; batch {batch}")
        cluster.workers[0] = cluster.start_worker()
        landing.kill_all()
        landing = self._land(cluster.url)
        batch = self._wait_batches(landing, batch, "after the driver on the cluster was killed")
        self._print(f"the driver was killed on the cluster; batch {batch}")
        self._end(landing)

    def _wait_batches(self, landing: Pipeline, after: int, when: str) -> int:
        """Waits for further batches; returns the number of the last one."""
        begun = [e["batch"] for e in landing.events if e["event"] == "batch"]
        wanted = max([after, *begun]) + CLUSTER_BATCHES
        found = landing.wait_for(lambda event: _is_batch(event, wanted))
        if found is None:
            self._fail(f"no batch {wanted} {when}: {landing.events[-3:]}")
            return wanted
        return int(found["batch"])

    def _land_rest(self) -> None:
        landing = self._land("local[2]", "--batch-rows", str(REST_BATCH_ROWS))
        total = self._brokers.message_count(TOPIC)
        found = landing.wait_for(lambda event: event.get("rows_total", 0) >= total)
        if found is None:
            self._fail(f"{total:,} messages were not landed: {landing.events[-3:]}")
        self._end(landing)
        self._print(f"landed the rest of {total:,} messages")

    def _end(self, landing: Pipeline) -> None:
        code = landing.end(signal.SIGTERM)
        if code != 0:
            self._fail(f"the landing ended with {code} after SIGTERM: {landing.events[-3:]}")

    def _count(self) -> None:
        spark = build_session("counts", "local[2]", log_file=self._spark_log)
        try:
            total = self._brokers.message_count(TOPIC)
            self.counts = count_lake(spark, self.lake, total, self._publisher.acknowledged)
        finally:
            spark.stop()
        acknowledged = sum(self._publisher.acknowledged)
        self._print(f"acknowledged {acknowledged:,}, unsure {self._publisher.unsure}; {self.counts}")
        if not self.counts.is_good:
            self._fail(f"the counts differ: {self.counts}")
        if not acknowledged:
            self._fail("nothing was acknowledged")

    def _run_elsewhere(self) -> None:
        """Runs the formats in a Connect session, and in a declarative pipeline that runs twice."""
        brokers, topic, begun_with, added = self._brokers, "ProofElsewhere", 2000, 500
        brokers.create_topic(topic)
        with Publisher(brokers.namesrv, topic, rows_per_second=1.0, seed=2) as publisher:
            publisher.publish(begun_with)
            counts = run_connect(brokers.namesrv, topic, "ProofConnected", self._directory)
            self._print(f"Connect: {counts}")
            if set(counts.values()) != {begun_with}:
                self._fail(f"a Connect session counted {counts} of {begun_with} messages")
            project = Declarative(brokers.namesrv, topic, self._directory / "declarative")
            for wanted in (begun_with, begun_with + added):
                publisher.publish(wanted - publisher.sent)
                numbers = read_numbers(project.run())
                self._print(f"declarative pipeline: {len(numbers):,} rows")
                if sorted(numbers) != list(range(wanted)):
                    self._fail(f"a declarative pipeline has {len(numbers)} rows of {wanted} messages")

    def _harm_pipelines(self) -> None:
        """Kills a rollup, a history, a replay and a resending of dead letters while they work."""
        proof = PipelineProof(self._brokers, self._start, self._directory)
        for check in (
            proof.roll_up(),
            proof.write_history(self.lake, TOPIC, self._publisher.acknowledged),
            proof.replay(),
            proof.resend(),
        ):
            for text, reasons in check:
                self._print(text)
                for reason in reasons:
                    self._fail(reason)

    def _harm_service(self) -> None:
        """Kills a service of many topics."""
        proof = ServiceProof(self._brokers, self._start, self._directory, self._options.topics)
        for text, reasons in proof.run():
            self._print(text)
            for reason in reasons:
                self._fail(reason)
        self.served = proof.topics

    def _harm_topics(self) -> None:
        self.skipped_in_silence = 0
        # Java is that of the previous session, and still writes to that session's log.
        spark = build_session("silence", "local[2]", shuffle_partitions=2)
        try:
            proof = SilenceProof(spark, self._spark_log, self._directory / "silence")
            with proof.cluster():
                for verdict in proof.run():
                    self.skipped_in_silence += verdict.silent
                    self._print(str(verdict))
                    for reason in verdict.reasons:
                        self._fail(reason)
        finally:
            spark.stop()
        if self.skipped_in_silence:
            self._fail(f"{self.skipped_in_silence} messages were skipped in silence")

    def _audit_healthy(self) -> None:
        stores = [f"{BROKER}={self._brokers.store(name)}" for name in ("master", "slave")]
        code, events = self._audit(TOPIC, [self.lake], stores)
        verdicts = [event for event in events if event["event"] == "verdict"]
        self.is_clean = code == 0 and len(verdicts) == 5 and all(event["is_equal"] for event in verdicts)
        self._print(f"audit of {len(verdicts)} healthy sides: {'clean' if self.is_clean else events}")
        if not self.is_clean:
            self._fail(f"the audit of healthy copies ended with {code}: {verdicts}")

    def _audit_planted(self) -> None:
        cut = copy_lake(self.lake, self._directory / "cut")
        doubled = copy_lake(self.lake, self._directory / "doubled")
        number = self._chance.randrange(self._publisher.sent)
        # The file of the running slave, which maps the same pages.
        place = find_middle(self._brokers.store("slave") / "commitlog", b"%012d" % number)
        flip_bit(*place)
        plants = [
            Plant(side="slave 1", problem="differs", differing=1),
            Plant(side=f"lake {cut}", problem="missing", missing=1, place=cut_record(cut)),
            Plant(side=f"lake {doubled}", problem="repeated", repeated=double_file(doubled)),
        ]
        self._check_plants([cut, doubled, self.lake], plants, healthy={"master", f"lake {self.lake}"})
        flip_bit(*place)

    def _audit_behind(self) -> None:
        brokers = self._brokers
        brokers.slave.stop()
        brokers.lonely_slave.start()
        before = self._publisher.sent
        self._publisher.publish(BEHIND)
        self._print(f"{self._publisher.sent - before:,} messages that the slave lacks")
        self._land_past_slow_slave()
        plants = [Plant(side="slave 1", problem="behind", behind=BEHIND, missing=BEHIND)]
        self._check_plants([], plants, healthy={"master"})

    def _land_past_slow_slave(self) -> None:
        """Checks that a landing that prefers slaves, but none that is far behind, has all messages of the
        master.
        """
        slave = f"{BROKER}:1"
        options = ("--option", "maxSlaveLag=1k", "--option", "explain=true")
        out = self._directory / "past-slow-slave"
        code = self._land("local[2]", "--once", *options, out=out).end(seconds=600.0)
        log = (out / CONTROL_DIR / LOG_FILE).read_text(errors="replace")
        left_out = set(re.findall(r"read\.planned .*slow_slaves=(\S+)", log))
        rows, total = check_lake(out).rows, self._brokers.message_count(TOPIC)
        text = f"landed {rows:,} of {total:,} messages past the slave, left out: {sorted(left_out)}"
        self._print(text)
        if code != 0 or rows != total or left_out != {slave}:
            self._fail(f"{text}; exit code {code}")

    def _check_plants(self, lakes: list[Path], plants: list[Plant], healthy: set[str]) -> None:
        code, events = self._audit(TOPIC, lakes, [])
        for plant in plants:
            reasons = plant.check(events)
            self.reasons += reasons
            self._print(f"planted in {plant.side}: {plant.problem}, {'; '.join(reasons) or 'found'}")
        equal = {e["side"] for e in events if e["event"] == "verdict" and e["is_equal"]}
        if code != 1 or equal != healthy:
            self._fail(f"the audit ended with {code}, equal are {sorted(equal)}, not {sorted(healthy)}")

    def _audit_bulk(self, rows: int) -> None:
        """Audits a large healthy topic: master, slave and lake."""
        brokers = self._brokers
        brokers.lonely_slave.stop()
        brokers.slave.start()
        brokers.create_topic(BULK_TOPIC)
        fill_topic(brokers.master.address, BULK_TOPIC, rows=rows, body_bytes=BULK_BODY_BYTES, queue_count=4)
        self._print(f"{rows:,} messages of {BULK_BODY_BYTES} bytes are published")
        lake = self._directory / "bulk"
        landing = self._land("local[2]", "--once", topic=BULK_TOPIC, out=lake)
        code = landing.end(seconds=1200.0)
        self._print(f"landed: {landing.events[-1:]}")
        if code != 0:
            self._fail(f"the landing of {rows:,} messages ended with {code}")
        code, events = self._audit(BULK_TOPIC, [lake], [], "--no-repeated-keys", "--settle-seconds", "60")
        read = {event["side"]: event["rows"] for event in events if event["event"] == "side"}
        self._print(f"audit of {rows:,} messages: exit code {code}, rows {read}")
        if code != 0 or set(read.values()) != {rows} or len(read) != 3:
            self._fail(f"the audit of {rows:,} healthy messages ended with {code}: {events[-4:]}")

    def _land(self, master: str, *more: str, topic: str = TOPIC, out: Path | None = None) -> Pipeline:
        command = ["--namesrv", self._brokers.namesrv, "--topic", topic, "--out", str(out or self.lake)]
        command += ["--master", master, "--read-from", "prefer-slave", *more]
        if not more:
            command += ["--batch-rows", str(self._options.batch_rows), "--trigger-seconds", "0"]
        return self._start("landing", *command)

    def _audit(
        self, topic: str, lakes: list[Path], stores: list[str], *more: str
    ) -> tuple[int | None, list[Event]]:
        command = ["--namesrv", self._brokers.namesrv, "--topic", topic, "--master", "local[2]", *more]
        command += [part for lake in lakes for part in ("--lake", str(lake))]
        command += [part for store in stores for part in ("--store", store)]
        audit = self._start("audit", *command)
        code = audit.end(seconds=1200.0)
        return code, audit.events

    def _start(self, name: str, *arguments: str) -> Pipeline:
        pipeline = Pipeline(name, *arguments, log=self._directory / f"{name}.log")
        self._started.append(pipeline)
        return pipeline

    def close(self) -> None:
        """Kills everything that was started, also after an error."""
        for pipeline in self._started:
            pipeline.kill_all()

    def _fail(self, reason: str) -> None:
        self.reasons.append(reason)
        self._print(f"FAILED: {reason}")

    def _print(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun_at:7.1f} s  {text}", flush=True)


def _is_batch(event: Event, at_least: int) -> bool:
    return bool(event["event"] == "batch" and event["batch"] >= at_least)


def prove(directory: Path, options: argparse.Namespace) -> int:
    """Runs the proof and returns the exit code."""
    with (
        running_brokers(directory) as brokers,
        Publisher(
            brokers.namesrv, TOPIC, rows_per_second=options.rows_per_second, seed=options.seed
        ) as publisher,
    ):
        brokers.create_topic(TOPIC)
        proof = Proof(directory, brokers, publisher, options)
        try:
            proof.run()
        finally:
            proof.close()
    counts = proof.counts
    assert counts is not None
    # A run that leaves out the audit, the losses, or the service proves nothing.
    is_good = not proof.reasons and proof.is_clean and proof.skipped_in_silence == 0 and bool(proof.served)
    for reason in proof.reasons:
        print(f"reason: {reason}")
    print(
        f"SPARK {'OK' if is_good else 'FAILED'} landed={counts.arrow} distinct={counts.arrow_distinct}"
        f" lost={counts.lost} duplicated={counts.duplicated}"
        f" skipped_in_silence={'unknown' if proof.skipped_in_silence is None else proof.skipped_in_silence}"
        f" audit={'clean' if proof.is_clean else 'unclean'}"
        f" topics={'unknown' if proof.served is None else proof.served}"
        f"{' skipped=' + ','.join(options.skip) if options.skip else ''}"
    )
    return 0 if is_good else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="publish at least N messages")
    parser.add_argument("--rows-per-second", type=float, default=2_000.0, help="while pipelines are killed")
    parser.add_argument("--kills", type=int, default=20, help="of the landing on its own")
    parser.add_argument("--batch-rows", type=int, default=5_000)
    parser.add_argument("--audit-rows", type=int, default=0, help="of a further topic; 0: none")
    parser.add_argument("--topics", type=int, default=200, help="of a service")
    stages = ["cluster", "elsewhere", "pipelines", "service", "silence", "audit"]
    parser.add_argument("--skip", nargs="*", choices=stages, default=[], help="while something is sought")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="tandemmq-spark-"))
    try:
        code = prove(directory, options)
    except BaseException as error:
        print(f"SPARK FAILED {error!r}; logs are in {directory}")
        raise
    if code:
        print(f"logs are in {directory}")
    else:
        shutil.rmtree(directory)
    return code


if __name__ == "__main__":
    sys.exit(main())
