"""A real JupyterLab in a temp dir, its kernels, and a look at what is left of a lab once it should be gone."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
import websocket

START_LIMIT = 60.0
ANSWER_LIMIT = 30.0
GONE_LIMIT = 5.0
REPOSITORY = Path(__file__).resolve().parent.parent


def wait_until(fact: Callable[[], Any], what: str, within: float) -> float:
    """Wait until a fact holds; returns how long that took. Fails with what it was still waiting for."""
    began = time.monotonic()
    while not fact():
        assert time.monotonic() < began + within, f"{what}: not so within {within:g} s"
        time.sleep(0.02)
    return time.monotonic() - began


# --- what a lab leaves behind ----------------------------------------------------------------------


def command_of(process: psutil.Process) -> str:
    """The command line of a process; "" if it ends while one looks."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


@dataclass(frozen=True)
class Footprint:
    """All that a lab opened under a TMPDIR of its own may leave in the system: processes, folders, listening ports.

    It is found from outside: every process of the lab but the kernel has the lab's folder in its command line.
    """

    tmp: Path

    def processes(self) -> list[psutil.Process]:
        """The guards and servers that run now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(str(self.tmp / "meetupq-") in word for word in process.cmdline()):
                    found.append(process)
        return found

    def servers(self) -> list[psutil.Process]:
        """The nats-servers among them."""
        return [process for process in self.processes() if "guard.py" not in command_of(process)]

    def folders(self) -> list[Path]:
        return sorted(self.tmp.glob("meetupq-*"))

    def ports(self) -> list[int]:
        """Where its servers listen."""
        ports = []
        for process in self.servers():
            with contextlib.suppress(psutil.Error):
                ports += [c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        return ports

    def is_empty(self) -> bool:
        return not self.processes() and not self.folders()

    def check_open(self, brokers: int = 1) -> list[int]:
        """Make sure that there is something that can disappear; returns the listening ports."""
        seen = f"processes {[command_of(p) for p in self.processes()]}, folders {self.folders()}, ports {self.ports()}"
        assert len(self.processes()) == 2 * brokers, f"a guard and a server for each of {brokers} lab(s); {seen}"
        assert len(self.folders()) == len(self.ports()) == brokers, seen
        assert all(answers(port) for port in self.ports())
        return self.ports()

    def wait_gone(self, ports: list[int], within: float = GONE_LIMIT) -> float:
        """Wait until nothing is left; returns how long that took."""
        began = time.monotonic()
        while not (self.is_empty() and not any(map(answers, ports))):
            left = f"processes {[command_of(p) for p in self.processes()]}, folders {self.folders()}"
            assert time.monotonic() < began + within, f"{within:g} s later there is still left: {left}, ports {ports}"
            time.sleep(0.02)
        return time.monotonic() - began

    def remove(self) -> None:
        """End what a failed test has left, so that it doesn't stay on the machine."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# --- JupyterLab ------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class JupyterLab:
    """`python -m jupyterlab` on a folder, with a home, settings and temp folder of its own under `root`.

    Args:
        root: an empty folder; the notebooks go into `root / "notebooks"`.
        environment: is added to that of the tests.
    """

    def __init__(self, root: Path, **environment: str) -> None:
        self.root = root
        self.notebooks = root / "notebooks"
        self.log = root / "jupyterlab.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = secrets.token_urlsafe(16)
        self.footprint = Footprint(root / "tmp")
        self._kernels: list[Kernel] = []
        for folder in (self.notebooks, self.footprint.tmp):
            folder.mkdir(exist_ok=True)
        own = {
            "HOME": str(root),
            "TMPDIR": str(self.footprint.tmp),
            "IPYTHONDIR": str(root / "ipython"),
            "JUPYTER_CONFIG_DIR": str(root / "config"),
            "JUPYTER_DATA_DIR": str(root / "data"),
            "JUPYTER_RUNTIME_DIR": str(root / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(root / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(root / "workspaces"),
        }
        # Or it asks, in front of the notebook, whether one wants to hear news.
        notification = root / "settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
        notification.parent.mkdir(parents=True, exist_ok=True)
        notification.write_text('{"fetchNews": "false"}')
        words = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={self.port}"]
        words += [f"--IdentityProvider.token={self.token}", "--ServerApp.port_retries=0", "--expose-app-in-browser"]
        words += [f"--ServerApp.root_dir={self.notebooks}", "--LabApp.news_url="]
        words += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
        words += ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words,
                cwd=self.notebooks,
                env=with_package(own | environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_for_answer()
        except BaseException:
            self.close()
            raise

    def _wait_for_answer(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(OSError):
                return bool(self.ask("GET", "/api/status"))
            return False

        wait_until(ready, "JupyterLab answers", START_LIMIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, method: str, path: str, **body: Any) -> Any:
        """One request to the REST API, and the JSON of the answer."""
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode() if method == "POST" else None,
            headers={"Authorization": f"token {self.token}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=ANSWER_LIMIT) as answer:
            return json.loads(answer.read() or b"null")

    def start_kernel(self) -> Kernel:
        """A new kernel, as the launcher's tile starts one."""
        return self.kernel(self.ask("POST", "/api/kernels", name="python3")["id"])

    def kernel(self, ident: str) -> Kernel:
        """The kernel that runs under this id."""
        kernel = Kernel(self, ident)
        self._kernels.append(kernel)
        return kernel

    def signal(self, how: signal.Signals) -> None:
        """Send the server a signal and see it out."""
        self.process.send_signal(how)
        self.process.wait(ANSWER_LIMIT)

    def close(self) -> None:
        """End the server, its kernels, and whatever a failed test has left."""
        for kernel in self._kernels:
            kernel.close()
        family = []
        if self.process.poll() is None:
            family = psutil.Process(self.process.pid).children(recursive=True)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        _, alive = psutil.wait_procs(family, timeout=3)
        for process in alive:
            process.kill()
        self.footprint.remove()


class Kernel:
    """One kernel behind the server's websocket, as the browser talks to it."""

    def __init__(self, lab: JupyterLab, ident: str) -> None:
        self.lab = lab
        self.ident = ident
        self._socket = websocket.create_connection(
            f"ws://127.0.0.1:{lab.port}/api/kernels/{ident}/channels",
            header=[f"Authorization: token {lab.token}"],
            timeout=ANSWER_LIMIT,
        )
        self.pid = 0
        self.look()

    def look(self) -> None:
        """Learn the pid of the process that is the kernel now."""
        self.pid = int(self.run("import os; print(os.getpid())"))

    def send(self, code: str) -> str:
        """Send a cell; returns its id at once."""
        ident = uuid.uuid4().hex
        header = {"msg_id": ident, "msg_type": "execute_request", "session": ident, "username": "", "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False, "stop_on_error": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "channel": "shell", "content": content}
        self._socket.send(json.dumps(message))
        return ident

    def messages(self, ident: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """What the kernel says about one cell."""
        while True:
            message = json.loads(self._socket.recv())
            if message["parent_header"].get("msg_id") == ident:
                yield message["header"]["msg_type"], message["content"]

    def until_printed(self, ident: str, wanted: str) -> None:
        """Wait until a cell that runs has printed something."""
        text = ""
        while wanted not in text:
            kind, content = next(self.messages(ident))
            assert kind != "error", "\n".join(content["traceback"])
            text += content["text"] if kind == "stream" else ""

    def outcome(self, ident: str) -> tuple[str, str]:
        """Wait for a cell's end; returns what it printed, and the name of the exception that it ended with, or ""."""
        text, error, traceback = "", "", ""
        replied = idle = False
        for kind, content in self.messages(ident):
            if kind == "stream":
                text += content["text"]
            elif kind == "error":
                error, traceback = content["ename"], "\n".join(content["traceback"])
            replied = replied or kind == "execute_reply"
            idle = idle or (kind == "status" and content["execution_state"] == "idle")
            if replied and idle:
                break
        return text + traceback, error

    def run(self, code: str) -> str:
        """Run a cell and return what it printed; fails if it raises."""
        text, error = self.outcome(self.send(code))
        assert not error, text
        return text

    def keep_busy(self) -> str:
        """Let a cell run that sleeps for a minute; returns its id once it does."""
        ident = self.send("import time; print('asleep', flush=True); time.sleep(60)")
        self.until_printed(ident, "asleep")
        return ident

    def interrupt(self) -> None:
        """What the stop button does."""
        self.lab.ask("POST", f"/api/kernels/{self.ident}/interrupt")

    def restart(self) -> None:
        """What the restart button does; returns when the new process is there."""
        self.lab.ask("POST", f"/api/kernels/{self.ident}/restart")

    def shut_down(self) -> None:
        self.lab.ask("DELETE", f"/api/kernels/{self.ident}")

    def is_gone(self) -> bool:
        """Whether the process that `pid` names has ended."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        return True

    def close(self) -> None:
        """End the connection; the kernel goes on."""
        with contextlib.suppress(OSError, websocket.WebSocketException):
            self._socket.close(timeout=0)


def with_package(environment: dict[str, str]) -> dict[str, str]:
    """The tests' environment plus this, for a process that imports the package from here, installed or not."""
    known = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(REPOSITORY), *([known] if known else [])])
    return os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | environment
