"""Java's clients and servers: fetched with Maven, compiled with javac, run as processes of this machine.

Jars and classes are kept in `.interop-cache` of the checkout (or TANDEMMQ_INTEROP_CACHE), by the checksum of
what they are made from. Every process gets a home of its own, so that it writes nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "java"
CACHE = Path(os.environ.get("TANDEMMQ_INTEROP_CACHE") or FOLDER.parents[2] / ".interop-cache")
ONLY_5X = {"AdminShell.java", "NewGroup.java", "Pop.java", "Recall.java", "Timer.java"}
# Short lives: no time for the second compiler, nor for more than one collector thread.
QUICK_START = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
FETCH_SECONDS_MAX = 600
STOP_SECONDS_MAX = 40
# What brokers of both lines reach into on Java 17.
OPENED = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.lang", "java.nio", "jdk.internal.ref", "sun.nio.ch")
    ),
]
SILENT_LOGBACK = '<configuration><root level="OFF"/></configuration>'


@dataclass(frozen=True)
class Line:
    """One line of RocketMQ: its name, the poms of its clients and servers, the folder of its programs."""

    name: str
    clients: str
    servers: str
    folder: str = "."


LINE_4 = Line("4.9", "clients-4.9", "servers-4.9")
LINE_5 = Line("5.x", "peers-5.x", "peers-5.x")
LINES = {line.name: line for line in (LINE_4, LINE_5)}
LINE_53 = Line("5.3", "peers-5.3", "peers-5.3")
"""An older release of 5.x: its clients at our servers, its brokers beside ours."""
EVERY_LINE = {**LINES, LINE_53.name: LINE_53}
GRPC = Line("grpc", "clients-grpc", "proxy-5.x", "grpc")
"""The clients of the gRPC protocol, and the proxy that they need."""


def missing_tools() -> list[str]:
    """The programs that must be installed."""
    return [tool for tool in ("mvn", "javac", "java") if shutil.which(tool) is None]


@cache
def jars(pom: str) -> Path:
    """The folder with the pom's jars."""
    source = FOLDER / f"{pom}.pom.xml"
    folder = CACHE / pom / "lib"

    def fetch() -> None:
        command = ["mvn", "-q", "-B", "-f", str(source), "dependency:copy-dependencies"]
        hint = "Maven's settings (~/.m2/settings.xml) say where jars come from."
        _run([*command, f"-DoutputDirectory={folder}"], FETCH_SECONDS_MAX, hint)

    _make(folder, source.read_bytes(), fetch)
    return folder


def fetch_all() -> None:
    """Fetches and compiles all that any test needs; nothing to do the second time.

    Raises:  AssertionError with the output of Maven or javac.
    """
    for line in (*EVERY_LINE.values(), GRPC):
        programs(line)
        jars(line.servers)


@cache
def programs(line: Line) -> str:
    """The class path of the line's clients and of our programs."""
    library = f"{jars(line.clients)}/*"
    found = sorted((FOLDER / line.folder).glob("*.java"))
    sources = [path for path in found if line is not LINE_4 or path.name not in ONLY_5X]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    # A folder of its own for each state of the sources: another run may still use the one before.
    folder = CACHE / line.clients / f"classes-{digest[:16]}"
    if not folder.exists():
        built = folder.with_name(f"{folder.name}.{os.getpid()}")
        built.mkdir(parents=True)
        _run(["javac", "-nowarn", "-d", str(built), "-cp", library, *map(str, sources)], FETCH_SECONDS_MAX)
        try:
            built.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(built)
    return f"{folder}:{library}"


def _make(folder: Path, made_from: bytes, make: object) -> None:
    """Makes the folder anew unless it was made from the same."""
    stamp = folder.with_name(f"{folder.name}.stamp")
    wanted = hashlib.sha256(made_from).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted and folder.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    assert callable(make)
    make()
    stamp.write_text(wanted)


def _run(command: list[str], seconds_max: float, hint: str = "") -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds_max, check=False)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{command[0]} did not end within {seconds_max:.0f} s. {hint}") from None
    output = (done.stdout + done.stderr)[-4000:]
    assert done.returncode == 0, f"{' '.join(command[:5])} ended with {done.returncode}. {hint}\n{output}"


def java_command(
    class_path: str, main: str, *arguments: str, home: Path, flags: Sequence[str] = ()
) -> list[str]:
    """The command that starts a client program, with the logging of both lines switched off."""
    make_home(home)
    silent = home / "conf" / "logback_tools.xml"
    flags = ["-Xmx256m", *QUICK_START, *flags, f"-Duser.home={home}", f"-Djava.io.tmpdir={home}"]
    flags += [f"-Dlogback.configurationFile={silent}", f"-Drmq.logback.configurationFile={silent}"]
    return ["java", *flags, "-cp", class_path, main, *arguments]


def run_java(
    class_path: str,
    main: str,
    *arguments: str,
    home: Path,
    flags: Sequence[str] = (),
    seconds_max: float = 200,
) -> subprocess.CompletedProcess[str]:
    """A program run to its end; standard error is part of its output."""
    return subprocess.run(
        java_command(class_path, main, *arguments, home=home, flags=flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds_max,
        check=False,
        env=environment(home),
        cwd=home,
    )


def run_program(
    line: Line, program: str, *arguments: str, home: Path, flags: Sequence[str] = (), seconds_max: float = 200
) -> str:
    """Returns the output of one of our programs, which prints OK on success. `flags` are the JVM's."""
    done = run_java(programs(line), program, *arguments, home=home, flags=flags, seconds_max=seconds_max)
    is_good = done.returncode == 0 and "OK" in done.stdout.splitlines()
    assert is_good, f"{program} ({line.name}) ended with {done.returncode}:\n{done.stdout[-6000:]}"
    return done.stdout


def make_home(home: Path) -> None:
    """A folder with what a broker of the 4.9 line insists to find in it."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("broker", "namesrv", "tools"):
        path = home / "conf" / f"logback_{name}.xml"
        if not path.exists():
            path.write_text(SILENT_LOGBACK)


def environment(home: Path) -> dict[str, str]:
    kept = {
        key: value for key, value in os.environ.items() if key not in ("JAVA_TOOL_OPTIONS", "NAMESRV_ADDR")
    }
    return {**kept, "ROCKETMQ_HOME": str(home)}


class Conversation:
    """A program that stays and is talked to by lines; ended by the end of its input."""

    def __init__(self, class_path: str, main: str, *arguments: str, home: Path) -> None:
        self._process = subprocess.Popen(
            java_command(class_path, main, *arguments, home=home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            env=environment(home),
            cwd=home,
        )

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def read_until(self, marker: str, seconds_max: float = 60) -> list[str]:
        """The lines before the one that starts with the marker, and that one."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(seconds_max, self._process.kill)
        watchdog.start()
        lines = []
        try:
            for line in self._process.stdout:
                lines.append(line.rstrip("\n"))
                if line.startswith(marker):
                    return lines
        finally:
            watchdog.cancel()
        raise AssertionError(f"ended or silent before {marker!r}:\n" + "\n".join(lines[-60:]))

    def finish(self, marker: str, seconds_max: float = 60) -> list[str]:
        """The same after the end of the input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None
        return self.read_until(marker, seconds_max)

    def close(self) -> None:
        """Ends the program; by force after STOP_SECONDS_MAX."""
        try:
            self._process.communicate(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends the program at once."""
        self._process.kill()
        self._process.communicate()


def _write_config(line: Line, settings: Mapping[str, object], path: Path) -> list[str]:
    """Writes the settings as the server wants them; the options that name the file."""
    if line is GRPC:
        path.write_text(json.dumps(settings))
        return ["-pc", str(path)]
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return ["-c", str(path)]


class JavaServer:
    """A Java NameServer, broker, controller or proxy as a process: started, stopped in order, or killed."""

    def __init__(self, line: Line, main: str, settings: Mapping[str, object], home: Path) -> None:
        make_home(home)
        self.log_path = home / f"{main.rsplit('.', 1)[1]}.log"
        memory = ["-Xmx1g", "-XX:MaxDirectMemorySize=1g", *QUICK_START]
        path = ["-cp", f"{jars(line.servers)}/*"]
        config = _write_config(line, settings, home / f"{main.rsplit('.', 1)[1]}.conf")
        self._command = ["java", *memory, f"-Duser.home={home}", *OPENED, *path, main, *config]
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._process is None
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=environment(self._home), cwd=self._home
            )

    def check_alive(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"ended with exit code {code}:\n{self.log_path.read_text()[-4000:]}"

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Ends it in order; by force after STOP_SECONDS_MAX, which is a failure."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{self._command[-3]} did not stop in {STOP_SECONDS_MAX} s") from None

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
