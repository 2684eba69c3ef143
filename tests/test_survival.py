"""No nats-server, guard, temp folder or port outlives its lab, whatever ends the kernel, JupyterLab or a script.

Each test runs a real process tree, ends it in one way, and looks from outside at what is left 5 s later.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_rig import Footprint, JupyterLab, Kernel, wait_until, with_package

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the guard rests on POSIX pipes and sessions"),
]

OPEN = """
import meetupq
lab = meetupq.Lab("ci")
lab.launch("ada", "bo")
lab.publish(count=3)
"""
COUNT_THREADS = "import threading; print(len(threading.enumerate()))"


# --- in JupyterLab ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_jupyterlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterLab]:
    """For the tests that leave the server itself alone."""
    with JupyterLab(tmp_path_factory.mktemp("jupyterlab")) as server:
        yield server


@pytest.fixture
def kernel(shared_jupyterlab: JupyterLab) -> Iterator[Kernel]:
    """A kernel of its own for a test, with nothing left from the test before."""
    server = shared_jupyterlab
    assert server.footprint.is_empty()
    kernel = server.start_kernel()
    yield kernel
    with contextlib.suppress(OSError):
        kernel.shut_down()
    kernel.close()
    server.footprint.remove()


def kill(kernel: Kernel) -> None:
    os.kill(kernel.pid, signal.SIGKILL)


def close(kernel: Kernel) -> None:
    """In well under the 5 s after which the guard would be killed for not listening."""
    kernel.run("began = lab.history.now(); lab.close(); took = lab.history.now() - began; assert took < 3, took")


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("end", [Kernel.restart, Kernel.shut_down, kill])
def test_nothing_outlives_the_kernel(kernel: Kernel, end: Callable[[Kernel], None], busy: bool) -> None:
    kernel.run(OPEN)
    ports = kernel.lab.footprint.check_open()
    if busy:
        kernel.keep_busy()

    end(kernel)

    print(f"all gone {kernel.lab.footprint.wait_gone(ports):.2f} s after the answer")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_nothing_outlives_jupyterlab(tmp_path: Path, how: signal.Signals) -> None:
    """SIGKILL leaves the kernels alone in the world: ipykernel sees within a second that its parent is gone."""
    with JupyterLab(tmp_path) as server:
        kernels = [server.start_kernel(), server.start_kernel()]
        for kernel in kernels:
            kernel.run(OPEN)
        ports = server.footprint.check_open(brokers=2)
        kernels[1].keep_busy()

        server.signal(how)

        took = wait_until(lambda: all(kernel.is_gone() for kernel in kernels), "the kernels are gone", 5)
        print(f"kernels gone after {took:.2f} s, all gone {server.footprint.wait_gone(ports):.2f} s after them")


@pytest.mark.parametrize("end", [close, Kernel.shut_down, kill])
def test_nothing_outlives_a_kernel_that_has_forked(kernel: Kernel, end: Callable[[Kernel], None]) -> None:
    """A forked child (a pool of multiprocessing, say) inherits the pipe that the guard listens to, and may live on."""
    kernel.run(OPEN)
    ports = kernel.lab.footprint.check_open()
    child = int(
        kernel.run("""
import os, time
child = os.fork()
if not child:
    os.setsid()
    time.sleep(60)
    os._exit(0)
print(child)
""")
    )
    try:
        end(kernel)
        kernel.lab.footprint.wait_gone(ports)
        assert psutil.pid_exists(child), "it was there all the time"
    finally:
        psutil.Process(child).kill()


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_an_interrupt_leaves_the_lab_alone(kernel: Kernel, busy: bool) -> None:
    kernel.run(OPEN)
    kernel.lab.footprint.check_open()
    servers = kernel.lab.footprint.servers()
    cell = kernel.keep_busy() if busy else ""

    kernel.interrupt()

    if busy:
        assert kernel.outcome(cell)[1] == "KeyboardInterrupt"
    kernel.run("""
[job] = lab.publish("after-the-interrupt")
await lab.until("acked", job=job)
assert not lab.failures
""")
    assert kernel.lab.footprint.servers() == servers, "it is the same process"


def test_the_interrupt_that_hits_a_call_leaves_the_lab_usable(kernel: Kernel) -> None:
    kernel.run(OPEN)
    cell = kernel.send("""
import asyncio
print("waiting", flush=True)
await lab.until("dead_lettered", within=60)
""")
    kernel.until_printed(cell, "waiting")

    began = time.monotonic()
    kernel.interrupt()

    assert kernel.outcome(cell)[1] in ("KeyboardInterrupt", "CancelledError")
    assert time.monotonic() - began < 5, "the stop button stops the cell, not only what comes after its minute"
    kernel.run('await lab.until("acked", job=lab.publish("later")[0])')


def test_running_the_setup_cell_again_replaces_the_lab(kernel: Kernel) -> None:
    kernel.run(OPEN)
    threads = int(kernel.run(COUNT_THREADS))

    for _ in range(4):
        kernel.run(OPEN)

    kernel.lab.footprint.check_open(brokers=1)
    wait_until(lambda: int(kernel.run(COUNT_THREADS)) <= threads, f"{threads} threads as after the first run", 5)
    assert "replaced" in kernel.run("print(lab)")


def test_closing_gives_everything_back(kernel: Kernel) -> None:
    threads = int(kernel.run("import meetupq\n" + COUNT_THREADS))
    kernel.run(OPEN)
    ports = kernel.lab.footprint.check_open()

    close(kernel)

    assert kernel.lab.footprint.is_empty(), "already when close() returns"
    kernel.lab.footprint.wait_gone(ports)
    wait_until(lambda: int(kernel.run(COUNT_THREADS)) <= threads, f"{threads} threads as before", 5)


# --- an interrupt while the lab opens --------------------------------------------------------------

INTERRUPTED = """
import os, signal, threading, time
import meetupq
from meetupq import broker, stage

threads = set(threading.enumerate())
original = {owner}.{name}
strikes = {strikes}

def interrupting(*args, **options):
    for _ in range(strikes):
        os.kill(os.getpid(), signal.SIGINT)  # for the main thread; this one, which opens the lab, goes on a bit later
        time.sleep(0.2)
    return original(*args, **options)

{owner}.{name} = interrupting
try:
    meetupq.Lab("ci")
except KeyboardInterrupt:
    print("interrupted")
finally:
    {owner}.{name} = original
    limit = time.monotonic() + 5
    while (left := set(threading.enumerate()) - threads) and time.monotonic() < limit:
        time.sleep(0.02)
print("left:", [thread.name for thread in left])
"""

MOMENTS = {
    "before the server is looked for": ("broker", "find_server"),
    "before the folder is made": ("broker.tempfile", "mkdtemp"),
    "before the server is ordered": ("broker.Broker", "_order"),
    "while the server starts": ("broker.Broker", "_ready"),
    "while the client connects": ("broker.Broker", "connect"),
    "while the streams are made": ("stage", "WorkItems"),
    "when the lab is nearly open": ("stage", "Witness"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupt_while_the_lab_opens_leaves_nothing_half_open(kernel: Kernel, moment: str) -> None:
    """Pressed once, and twice by somebody in a hurry: the second one hits the closing."""
    owner, name = MOMENTS[moment]
    for strikes in (1, 2):
        said = kernel.run(INTERRUPTED.format(owner=owner, name=name, strikes=strikes))

        assert said.splitlines() == ["interrupted", "left: []"], f"{strikes}: {said}"
        kernel.lab.footprint.wait_gone([])
    kernel.run(OPEN)
    kernel.lab.footprint.check_open()


# --- plain scripts ---------------------------------------------------------------------------------

Script = Callable[[str], "subprocess.Popen[str]"]
REPORT_AND_GO_ON = (
    OPEN
    + """
import os, signal, sys, time
print("open", flush=True)
sys.stdin.readline()
"""
)


@pytest.fixture
def footprint(tmp_path: Path) -> Iterator[Footprint]:
    footprint = Footprint(tmp_path)
    yield footprint
    footprint.remove()


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    """Start a script as a terminal does, in a process group of its own; its traces are in a TMPDIR of its own."""
    processes = []

    def start(code: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code],
            env=with_package({"TMPDIR": str(tmp_path)} | environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def wait_open(process: subprocess.Popen[str], footprint: Footprint) -> list[int]:
    assert process.stdout
    said = process.stdout.readline()
    assert said == "open\n", said + process.stdout.read()
    return footprint.check_open()


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Let a script go on to its end; returns its exit code and what it said."""
    said, _ = process.communicate("go on\n", timeout=20)
    return process.returncode, said


@pytest.mark.parametrize(
    ("last_line", "code", "words"),
    [
        ("", 0, ""),
        ("lab.close()", 0, ""),
        ("lab.close(); lab.close()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise RuntimeError('my own')", 1, "RuntimeError: my own"),
        ("os._exit(4)", 4, ""),
        ("os.abort()", -signal.SIGABRT, ""),
    ],
)
def test_nothing_outlives_a_script(script: Script, footprint: Footprint, last_line: str, code: int, words: str) -> None:
    process = script(REPORT_AND_GO_ON + last_line)
    ports = wait_open(process, footprint)

    ended, said = end_of(process)

    assert ended == code, said
    assert words in said if words else not said, "no traceback, no warning, no word of a thread that died"
    footprint.wait_gone(ports)


@pytest.mark.parametrize(
    "how", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGINT], ids=lambda how: how.name
)
def test_nothing_outlives_a_script_that_gets_a_signal(
    script: Script, footprint: Footprint, how: signal.Signals
) -> None:
    process = script(REPORT_AND_GO_ON)
    ports = wait_open(process, footprint)

    os.killpg(process.pid, how)  # as a terminal does it

    assert process.wait(10) == -how
    said = process.communicate()[0]
    assert "KeyboardInterrupt" in said if how == signal.SIGINT else not said
    footprint.wait_gone(ports)


def test_a_start_that_fails_leaves_nothing(script: Script, footprint: Footprint, tmp_path: Path) -> None:
    """A server that dies at once: its own word for it is a fatal line in the log."""
    server = tmp_path / "nats-server"
    server.write_text("""#!/bin/sh
[ "$1" = --version ] && echo "nats-server: v2.15.1" && exit
exit 1
""")
    server.chmod(0o755)
    process = script(
        """
import threading, meetupq
for _ in range(3):
    try:
        meetupq.Lab("ci")
    except meetupq.MeetupqError as error:
        print(error)
print(len(threading.enumerate()))
""",
        MEETUPQ_NATS_SERVER=str(server),
    )

    ended, said = end_of(process)

    assert ended == 0, said
    *errors, threads = said.splitlines()
    assert len(errors) == 3 and all("ended at once" in error for error in errors), said
    assert threads == "1", "no thread is left either"
    footprint.wait_gone([])


def test_a_crash_while_the_lab_opens_leaves_nothing(script: Script, footprint: Footprint) -> None:
    """SIGKILL in the middle of the start, when the server runs but nobody knows its port yet."""
    process = script("""
import os, signal, meetupq
from meetupq import broker
broker.Broker._ready = lambda self: os.kill(os.getpid(), signal.SIGKILL)
meetupq.Lab("ci")
""")

    assert end_of(process)[0] == -signal.SIGKILL
    footprint.wait_gone([])
