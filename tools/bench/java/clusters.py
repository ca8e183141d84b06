"""The two compared clusters: ours and Java RocketMQ's, as processes of this machine with equal settings.

At the first run Maven downloads Java's servers and client (`fetch_jars`), and javac compiles our load
program, both into the cache. Java gets a heap of 1 GiB and the collector of its own start scripts.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.errors import TandemError
from tandemmq.launcher import Server, stopping, write_properties
from tandemmq.protocol import speedups
from tandemmq.runtime.speedups import SWITCH, load_speedups
from tandemmq.spark.java import find_java

VERSION: Final = "5.5.0"
"""The version of Java's servers and client, unless another one is chosen."""
PARTS: Final = ("client", "namesrv", "broker")
OURS, KERNEL, JAVA = "tandemmq", "tandemmq-speedups", "java"
"""The sides. The brokers of KERNEL are ours, with the optional kernel."""
PROXY: Final = "proxy"
PROXY_VERSION: Final = "5.5.0"
HOST: Final = "127.0.0.1"
BROKER_NAME: Final = "bench"
READY_S_MAX: Final = 180.0
STOP_S_MAX: Final = 60.0
STILL_S_MAX: Final = 15.0
"""The maximum pause of a master and slave; well below haHousekeepingInterval, after which they disconnect."""
COMPILE_S_MAX: Final = 300.0
SERVER_FLAGS: Final = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxDirectMemorySize=1g",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.lang", "java.nio", "jdk.internal.ref", "sun.nio.ch")
    ),
)
_SILENT: Final = '<configuration><root level="OFF"/></configuration>'
_LOAD: Final = Path(__file__).parent / "Load.java"


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """The settings of both brokers.

    `has_slave`: a send is answered only when the slave has it, too. `is_elected`: a controller elects the
    master, and a send is accepted only when the other broker is in the in-sync set.
    """

    name: str
    flush: str = "ASYNC_FLUSH"
    has_slave: bool = False
    is_elected: bool = False
    acks_min: int = 2
    """For elected brokers: the number that must have a message. With 2, a master without a slave accepts no
    sends.
    """
    log_file_bytes: int = 1 << 30

    def of_broker(
        self, directory: Path, name_server: str, port: int, *, is_slave: bool, controller: str = ""
    ) -> dict[str, object]:
        """Returns the properties of one broker. `controller`: the controller's address, for elected
        brokers.
        """
        role = "SLAVE" if is_slave else "SYNC_MASTER" if self.has_slave else "ASYNC_MASTER"
        of_role: dict[str, object] = {
            "brokerId": int(is_slave),
            "brokerRole": role,
            "inSyncReplicas": 1 + self.has_slave,
        }
        of_elected: dict[str, object] = {
            "enableControllerMode": "true",
            "controllerAddr": controller,
            "allAckInSyncStateSet": "true",
            "minInSyncReplicas": self.acks_min,
        }
        return {
            **(of_elected if self.is_elected else of_role),
            "namesrvAddr": name_server,
            "brokerClusterName": BROKER_NAME,
            "brokerName": BROKER_NAME,
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "listenPort": port,
            "haListenPort": port + 1,
            "flushDiskType": self.flush,
            "mappedFileSizeCommitLog": self.log_file_bytes,
            "storePathRootDir": directory / ("slave" if is_slave else "master"),
            "storePathCommitLog": directory / ("slave" if is_slave else "master") / "commitlog",
            "waitTimeMillsInSendQueue": 10_000,
            "transientStorePoolEnable": "false",
            "enablePropertyFilter": "true",
        }

    def of_controller(self, directory: Path, address: str) -> dict[str, object]:
        """Returns the properties of the only controller."""
        return {
            "controllerDLegerGroup": BROKER_NAME,
            "controllerDLegerPeers": f"n0-{address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": directory / "controller",
        }


@dataclass(frozen=True, slots=True)
class MeasuredCluster:
    """A running cluster. `pids`: process ids by role. `slave`, `controller`: empty if there is none."""

    side: str
    name_server: str
    master: str
    pids: Mapping[str, int]
    slave: str = ""
    controller: str = ""


@contextmanager
def paused_cluster(cluster: MeasuredCluster, seconds: float) -> Iterator[None]:
    """Stops the cluster's processes for the duration of the block, about `seconds`, and leaves the machine to
    another cluster. A cluster with a controller keeps running, and so does one with a slave beyond
    STILL_S_MAX: its parts would treat the pause as a death.
    """
    goes_on = cluster.controller or (cluster.slave and seconds > STILL_S_MAX)
    pids = () if goes_on else tuple(cluster.pids.values())
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class JavaTools:
    """The tools to run Java's side and the load. `class_path` includes the load program."""

    java: str
    class_path: str


def prepare_java(cache: Path, version: str = VERSION) -> JavaTools:
    """Downloads the jars of RocketMQ and compiles the load program, unless that was done before.

    Raises:  TandemError naming the missing tool, or the failure; ConfigError without Java.
    """
    java = find_java()
    folder = f"rocketmq-java-{version}"
    artifacts = [f"org.apache.rocketmq:rocketmq-{part}:{version}" for part in PARTS]
    library = os.pathsep.join(map(str, fetch_jars(cache, folder, artifacts, has_dependencies=True)))
    classes = cache / folder / f"load-{hashlib.sha256(_LOAD.read_bytes()).hexdigest()[:16]}"
    if not classes.exists():
        compiler = shutil.which("javac", path=f"{java / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
        if compiler is None:
            raise TandemError("javac is missing: install a JDK, it compiles the load program")
        built = classes.with_name(f"{classes.name}.{os.getpid()}")
        done = subprocess.run(
            [compiler, "-nowarn", "-d", str(built), "-cp", library, str(_LOAD)],
            capture_output=True,
            text=True,
            timeout=COMPILE_S_MAX,
            check=False,
        )
        if done.returncode:
            raise TandemError(f"the load program cannot be compiled: {done.stderr.strip()[:500]}")
        built.rename(classes)
    return JavaTools(str(java / "bin" / "java"), f"{classes}{os.pathsep}{library}")


def make_home(home: Path) -> list[str]:
    """Creates a writable folder for a Java process, and returns the flags that keep its files there and its
    output silent.
    """
    home.mkdir(parents=True, exist_ok=True)
    silent = home / "logback.xml"
    silent.write_text(_SILENT, encoding="utf-8")
    flags = [f"-Duser.home={home}", f"-Djava.io.tmpdir={home}", f"-Drmq.logback.configurationFile={silent}"]
    return [*flags, f"-Dlogback.configurationFile={silent}"]


def find_kernel() -> str:
    """Returns "used" if servers of this environment use the kernel, else the reason why they do not."""
    load_speedups()
    speedups.kernel = None  # our load generator is not measured with it
    return speedups.state


@contextmanager
def running_our_name_server(directory: Path) -> Iterator[MeasuredCluster]:
    """Runs only our name server, without a broker. Creates `directory`.

    Raises:  ProcessFailed if it does not start.
    """
    directory.mkdir(parents=True)
    command = ["namesrv", "--set", "listenPort=0", "--set", f"bindAddress={HOST}"]
    server = Server("name server", command, directory / "namesrv.log")
    with stopping([server]):
        server.start()
        yield MeasuredCluster(OURS, server.address, "", {"name server": server.pid})


@contextmanager
def running_java_name_server(directory: Path, tools: JavaTools) -> Iterator[MeasuredCluster]:
    """Runs only RocketMQ's name server, like `running_our_name_server`.

    Raises:  TandemError if it ends, or does not listen within READY_S_MAX.
    """
    directory.mkdir(parents=True)
    port = free_port()
    values = {"listenPort": port, "kvConfigPath": directory / "kvConfig.json"}
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    with _java_process(tools, directory, "name server", main, values, port) as pid:
        yield MeasuredCluster(JAVA, f"{HOST}:{port}", "", {"name server": pid})


@contextmanager
def _java_process(
    tools: JavaTools, directory: Path, name: str, main: str, values: Mapping[str, object], port: int
) -> Iterator[int]:
    """Starts one of RocketMQ's servers and yields its process id once it listens."""
    home = directory / f"{name.replace(' ', '-')}-home"
    flags = make_home(home)
    config = ["-c", str(write_properties(home / "server.conf", values))]
    if name == PROXY:
        (home / "proxy.json").write_text(json.dumps(values), encoding="utf-8")
        config = ["-pc", str(home / "proxy.json")]
    log = home / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [tools.java, *SERVER_FLAGS, *flags, "-cp", tools.class_path, main, *config],
            stdout=output,
            stderr=output,
            env={**os.environ, "ROCKETMQ_HOME": str(home)},
            cwd=home,
        )
    try:
        wait_until_open(process, port, f"Java's {name}", log)
        yield process.pid
    finally:
        stop_process(process)


@contextmanager
def running_ours(
    directory: Path, setting: BrokerSetting, *, has_kernel: bool = False
) -> Iterator[MeasuredCluster]:
    """Runs our name server, master and slave. `has_kernel`: with the kernel, if `find_kernel` finds it.

    Raises:  ProcessFailed if one does not start.
    """
    environment = {**os.environ, SWITCH: "on" if has_kernel else "off"}
    with ExitStack() as stack:
        name_server = stack.enter_context(running_our_name_server(directory))
        pids = dict(name_server.pids)
        servers: dict[str, Server] = {}

        def start(name: str, command: str, values: Mapping[str, object]) -> None:
            conf = write_properties(directory / f"{name}.conf", {**values, "bindAddress": HOST})
            servers[name] = Server(name, [command, "-c", str(conf)], directory / f"{name}.log")
            servers[name].environment = environment
            stack.enter_context(stopping([servers[name]]))
            servers[name].start()

        controller = ""
        if setting.is_elected:
            controller = f"{HOST}:{free_port()}"
            start("controller", "controller", setting.of_controller(directory, controller))
        for name in ("master", "slave")[: 1 + setting.has_slave]:
            values = setting.of_broker(
                directory,
                name_server.name_server,
                free_port(),
                is_slave=name == "slave",
                controller=controller,
            )
            start(name, "broker", values)
        pids |= {name: server.pid for name, server in servers.items()}
        slave = servers["slave"].address if setting.has_slave else ""
        yield MeasuredCluster(
            KERNEL if has_kernel else OURS,
            name_server.name_server,
            servers["master"].address,
            pids,
            slave,
            controller,
        )


@contextmanager
def running_java(directory: Path, setting: BrokerSetting, tools: JavaTools) -> Iterator[MeasuredCluster]:
    """Runs RocketMQ's name server, master and slave.

    Raises:  TandemError if one ends, or does not listen within READY_S_MAX.
    """
    with ExitStack() as stack:
        base = stack.enter_context(running_java_name_server(directory, tools))
        pids = dict(base.pids)
        name_server, controller = base.name_server, ""
        brokers: dict[str, str] = {}

        def start(name: str, main: str, values: Mapping[str, object], port: int) -> None:
            process = _java_process(tools, directory, name, main, values, port)
            pids[name] = stack.enter_context(process)

        if setting.is_elected:
            port = free_port()
            controller = f"{HOST}:{port}"
            values = setting.of_controller(directory, controller)
            start("controller", "org.apache.rocketmq.controller.ControllerStartup", values, port)
        for name in ("master", "slave")[: 1 + setting.has_slave]:
            port = free_port()
            brokers[name] = f"{HOST}:{port}"
            values = setting.of_broker(
                directory, name_server, port, is_slave=name == "slave", controller=controller
            )
            start(name, "org.apache.rocketmq.broker.BrokerStartup", values, port)
        slave = brokers.get("slave", "")
        yield MeasuredCluster(JAVA, name_server, brokers["master"], pids, slave, controller)


def prepare_java_proxy(cache: Path) -> JavaTools:
    """Downloads the jars of RocketMQ's gRPC proxy, unless that was done before.

    Raises:  TandemError naming the missing tool, or the failure; ConfigError without Java.
    """
    artifacts = (f"org.apache.rocketmq:rocketmq-proxy:{PROXY_VERSION}",)
    jars = fetch_jars(cache, "rocketmq-proxy", artifacts, has_dependencies=True)
    return JavaTools(str(find_java() / "bin" / "java"), os.pathsep.join(map(str, jars)))


@contextmanager
def running_java_proxy(directory: Path, name_server: str, tools: JavaTools) -> Iterator[tuple[str, int]]:
    """Runs RocketMQ's gRPC proxy before a cluster; yields its address and process id once it listens.

    Raises:  TandemError if it ends, or does not listen within READY_S_MAX.
    """
    port = free_port()
    values = {
        "rocketMQClusterName": BROKER_NAME,
        "proxyMode": "CLUSTER",
        "namesrvAddr": name_server,
        "localServeAddr": HOST,
        "grpcServerPort": port,
        "remotingListenPort": port + 1,
    }
    main = "org.apache.rocketmq.proxy.ProxyStartup"
    with _java_process(tools, directory, PROXY, main, values, port) as pid:
        yield f"{HOST}:{port}", pid


def free_port() -> int:
    """Returns a port that was just free, as were the two neighbouring ports that a broker also opens."""
    while True:
        with ExitStack() as stack:
            port = stack.enter_context(socket.create_server((HOST, 0))).getsockname()[1]
            try:
                for other in (port - 2, port + 1):
                    stack.enter_context(socket.create_server((HOST, other)))
            except (OSError, OverflowError):
                continue
            return int(port)


def wait_until_open(process: subprocess.Popen[bytes], port: int, name: str, log: Path) -> None:
    """Waits until the port accepts connections.

    Raises:  TandemError if the process ends, or does not listen within READY_S_MAX.
    """
    deadline = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            last = log.read_text(encoding="utf-8", errors="replace").strip()[-300:]
            raise TandemError(f"{name} ended with exit code {process.returncode}: {last}")
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1.0) as connection:
            if connection.getsockname() != connection.getpeername():  # an unused port may connect to itself
                return
        time.sleep(0.02)
    raise TandemError(f"{name} does not listen after {READY_S_MAX:.0f} s")


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Terminates the process; kills it after STOP_S_MAX."""
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# Jars, downloaded with Maven into a folder and never kept in the repository; Kafka's, too.

FETCH_SECONDS_MAX = 900.0


def fetch_jars(cache: Path, name: str, artifacts: Sequence[str], *, has_dependencies: bool) -> list[Path]:
    """Returns the jars of the artifacts in `cache/name`; downloads them unless the same ones are there.

    Raises:  TandemError if Maven is missing or fails.
    """
    folder, pom = cache / name / "lib", cache / name / "pom.xml"
    text = render_pom(name, artifacts, has_dependencies=has_dependencies)
    stamp = cache / name / "fetched.pom.xml"
    if not (stamp.exists() and stamp.read_text(encoding="utf-8") == text and folder.is_dir()):
        shutil.rmtree(cache / name, ignore_errors=True)
        folder.mkdir(parents=True)
        pom.write_text(text, encoding="utf-8")
        _run_maven(pom, folder)
        pom.rename(stamp)
    return sorted(folder.glob("*.jar"))


def render_pom(name: str, artifacts: Sequence[str], *, has_dependencies: bool) -> str:
    """Returns a Maven project that needs the artifacts, with or without their dependencies."""
    exclusions = (
        ""
        if has_dependencies
        else "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    )
    lines = []
    for artifact in artifacts:
        group, identity, version = artifact.split(":")
        lines.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{identity}</artifactId>"
            f"<version>{version}</version>{exclusions}</dependency>"
        )
    return (
        "<project><modelVersion>4.0.0</modelVersion>\n"
        f"<groupId>tandemmq.bench</groupId><artifactId>{name}</artifactId><version>1</version>"
        "<packaging>pom</packaging>\n<dependencies>\n" + "\n".join(lines) + "\n</dependencies>\n</project>\n"
    )


def _run_maven(pom: Path, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise TandemError("Maven is missing (`mvn`): install it, it fetches what is compared with ours")
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    done = subprocess.run(
        [*command, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=FETCH_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise TandemError(f"Maven could not fetch {pom.parent.name}: {' '.join(errors[:1])}")
