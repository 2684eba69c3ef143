"""The command `meetupq`: open the course, run the whole show without Jupyter, or find out why it doesn't work."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from meetupq.broker import Broker, asking, find_server, server_version
from meetupq.errors import BrokerError, MeetupqError
from meetupq.history import Event, History
from meetupq.scenarios import MEETUP, Balance, balanced, perform
from meetupq.stage import Stage
from meetupq.tasks import drop
from meetupq.timeline import Timeline
from meetupq.timing import PRESETS, Timing

T = TypeVar("T")
PACKAGE: Final = Path(__file__).resolve().parent
JUPYTER_SETTINGS: Final = PACKAGE / "jupyter"
"""A folder for JUPYTER_CONFIG_PATH: all cells stay in the page, and JupyterLab asks nothing and fetches no news."""
FIRST_LESSON: Final = "00_start_here.ipynb"
NOT_LESSONS: Final = frozenset({".ipynb_checkpoints", "__pycache__"})
ENOUGH_DISK: Final = 200 * 2**20


class CommandFailed(MeetupqError):
    """This command can't do its work here."""


# --- the course in JupyterLab ------------------------------------------------------------------------


def shipped_notebooks() -> tuple[Path, bool]:
    """The folder with the lessons, and whether it is a source tree's own, which is used where it lies.

    Raises:
        CommandFailed: this installation has none.
    """
    source_tree = PACKAGE.parent
    in_the_tree, in_the_package = source_tree / "notebooks", PACKAGE / "notebooks"
    if (source_tree / "pyproject.toml").is_file() and any(in_the_tree.glob("*.ipynb")):
        return in_the_tree, True
    if any(in_the_package.glob("*.ipynb")):
        return in_the_package, False
    raise CommandFailed(
        "this installation of meetupq has no notebooks: install it again, or run this in a checkout of its repository"
    )


def copy_lessons(source: Path, target: Path) -> list[str]:
    """Copy the lessons and what belongs to them into a folder. Returns the files that were kept as the learner left
    them: a file that exists is never written to.

    Raises:
        CommandFailed: the folder can't be written.
    """
    kept = []
    try:
        for file in sorted(path for path in source.rglob("*") if path.is_file()):
            name = file.relative_to(source)
            if NOT_LESSONS.intersection(name.parts):
                continue
            goal = target / name
            if os.path.lexists(goal):
                if not (goal.is_file() and goal.read_bytes() == file.read_bytes()):
                    kept.append(str(name))
                continue
            goal.parent.mkdir(parents=True, exist_ok=True)
            # In one step, so that an interrupt leaves no half lesson that would be "kept" from then on.
            part = goal.with_name(f".{goal.name}.{secrets.token_hex(4)}")
            try:
                part.write_bytes(file.read_bytes())
                part.rename(goal)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise CommandFailed(
            f"can't put the notebooks into {target} ({error.strerror or error}): "
            "change to a folder that you may write to, or choose one with --dir"
        ) from error
    return kept


def prepare_course(folder: str | None) -> Path:
    """The folder to open: the source tree's own, or a copy. Says on stderr what was kept."""
    source, ours = shipped_notebooks()
    if ours and folder is None:
        return source
    target = Path(folder or "notebooks").expanduser().absolute()
    if kept := copy_lessons(source, target):
        _say(f"kept as you left them, in {target}: {', '.join(kept)}")
        _say("(rename or remove one of them, and the next `meetupq lab` puts the shipped one there)")
    return target


def first_lesson(folder: Path) -> str:
    """The notebook to open: `00_start_here.ipynb`, or the first by name.

    Raises:
        CommandFailed: there is none.
    """
    names = sorted(path.name for path in folder.glob("*.ipynb"))
    if not names:
        raise CommandFailed(f"there are no notebooks in {folder}: choose another folder with --dir")
    return FIRST_LESSON if FIRST_LESSON in names else names[0]


def lab_command(folder: Path, *, port: int | None = None, browser: bool = True, extra: Sequence[str] = ()) -> list[str]:
    """The command line that opens JupyterLab of this very environment at the first lesson."""
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"]
    command += [f"--LabApp.default_url=/lab/tree/{first_lesson(folder)}"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.news_url="]
    command += ["-y"]  # Ctrl-C ends it at once; the notebooks are saved as one works
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"] if port else []
    command += [] if browser else ["--no-browser"]
    command += ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [*command, *extra]


def lab_environment(environment: Mapping[str, str], timing: str | None = None) -> dict[str, str]:
    """The environment for JupyterLab. Our settings come as defaults; whatever the user has set still wins."""
    paths = [str(JUPYTER_SETTINGS), environment.get("JUPYTER_CONFIG_PATH", "")]
    changed = {**environment, "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, paths))}
    if timing:
        changed["MEETUPQ_TIMING"] = timing
    return changed


def run_lab(arguments: argparse.Namespace) -> int:
    Timing.chosen(arguments.timing)  # a wrong MEETUPQ_TIMING is better told here than in every lesson
    if arguments.port:
        _refuse_taken(arguments.port)
    folder = prepare_course(arguments.dir)
    command = lab_command(folder, port=arguments.port, browser=arguments.browser, extra=arguments.extra)
    environment = lab_environment(os.environ, arguments.timing)
    _say(f"opening {folder / first_lesson(folder)}; Ctrl-C ends it")
    sys.stdout.flush()
    if os.name == "nt":  # there exec returns to the shell at once
        return subprocess.run(command, env=environment, check=False).returncode
    # We become JupyterLab: every signal reaches it, and there is nobody left who could forget it.
    return os.execve(command[0], command, environment)


def _refuse_taken(port: int) -> None:
    try:
        _bind(port)
    except OSError as error:
        raise CommandFailed(
            f"port {port} can't be used ({error.strerror}): choose another, or leave --port out"
        ) from error


# --- the show without Jupyter ------------------------------------------------------------------------


def run_demo(arguments: argparse.Namespace) -> int:
    folder = _writable_folder(arguments.out)
    timing = Timing.preset(arguments.timing)
    return asyncio.run(_demo(timing, arguments.seconds, arguments.seed, folder))


async def _demo(timing: Timing, seconds: float, seed: int, folder: Path) -> int:
    async with Stage(timing) as stage:
        balance = await _until_interrupted(_play(stage, seconds, seed))
        failures = [str(failure) for failure in stage.failures]
        meta = stage.history.meta
    return _tell(balance, failures, meta, folder)


async def _play(stage: Stage, seconds: float, seed: int) -> Balance:
    if (await balanced(stage, within=0)).stored:
        raise CommandFailed(
            f"the server at {stage.broker.address} has had jobs before, and the demo counts from nothing: "
            "unset MEETUPQ_NATS_URL, or remove the streams and buckets of meetupq there"
        )
    stage.history.meta.update(scenario="meetup", seconds=seconds, seed=seed)
    _say(f"{seconds:g} s of the talk's workload, timing {stage.timing.name!r}, nats-server {stage.broker.version}")
    await perform(stage, MEETUP, seconds=seconds, seed=seed, tick=_Progress(stage.history, seconds))
    return await balanced(stage)


async def _until_interrupted(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and let Ctrl-C end it for certain: a cancellation, as which asyncio delivers it, can get lost in
    whatever waits for the broker (see `drop`), and the demo would go on to its end."""
    task = asyncio.ensure_future(work)
    try:
        here = asyncio.current_task()
        if here and here.cancelling():  # it was lost already, before we came here
            raise asyncio.CancelledError
        return await asyncio.shield(task)
    finally:
        await drop(task)


class _Progress:
    """One line about the run so far on stderr: the same line again on a terminal, a new one every 5 s elsewhere."""

    def __init__(self, history: History, seconds: float) -> None:
        self._history = history
        self._seconds = seconds
        self._live = sys.stderr.isatty()
        self._timeline = Timeline()
        self._next = 0.0

    def __call__(self, elapsed: float) -> None:
        self._timeline.feed(self._history.since(self._timeline.seen))
        if not self._live and elapsed < min(self._next, self._seconds):
            return
        self._next += 5.0
        counts = ", ".join(f"{count} {state}" for state, count in self._timeline.counts.items() if count)
        holding = sum(1 for item in self._timeline.items.values() if item.owner)
        line = f"{elapsed:5.1f} of {self._seconds:g} s: {counts or 'nothing published yet'}; {holding} leases held"
        if self._live:
            room = shutil.get_terminal_size().columns - 1
            end = "\n" if elapsed >= self._seconds else ""
            print(f"\r{line[:room]:<{room}}", end=end, file=sys.stderr, flush=True)
        else:
            _say(line)


def _tell(balance: Balance, failures: Sequence[str], meta: Mapping[str, Any], folder: Path) -> int:
    """Print and write everything about a run. Returns the exit code."""
    from meetupq import checks, figures  # matplotlib takes its time: only when there is something to draw

    print(f"{'':14}{'history':>9}{'broker':>9}")
    for what, ours, theirs in balance.rows:
        print(f"{what:<14}{ours:>9}{theirs:>9}{'' if ours == theirs else '   <- differs'}")
    flying = ", ".join(f"{n} {state}" for state, n in balance.states.items() if state not in ("done", "dead"))
    print(f"(in flight: {flying})")
    verb = "adds up" if balance.adds_up else "DOES NOT ADD UP"
    print(
        f"It {verb}: {balance.published} published = {balance.states['done']} acked "
        f"+ {balance.states['dead']} dead + {balance.in_flight} in flight"
    )
    print("\n" + figures.describe_deliveries(balance.events, now=balance.at))
    print("\n" + figures.describe_leases(balance.events, now=balance.at) + "\n")
    verdicts = [
        checks.adds_up(balance.events),
        checks.nothing_lost(balance.events, balance.queued, balance.letters),
        checks.never_two_owners(balance.events),
    ]
    for verdict in verdicts:
        print(verdict)
    for failure in failures:
        print(f"BROKEN: in the background, {failure}")
    deliveries = figures.delivery_attempts(balance.events, now=balance.at, pixel_ratio=2.0)
    leases = figures.lease_ownership(balance.events, now=balance.at, pixel_ratio=2.0)
    try:
        (folder / "deliveries.png").write_bytes(figures.encode(deliveries))
        (folder / "leases.png").write_bytes(figures.encode(leases))
        _recorded(balance.events, meta).save(folder / "recording.jsonl")
    except OSError as error:
        raise CommandFailed(
            f"can't write into {folder} ({error.strerror or error}): choose another with --out"
        ) from error
    print(f"wrote deliveries.png, leases.png and recording.jsonl into {folder}")
    broken = any(verdict.status == "BROKEN" for verdict in verdicts)
    return int(broken or bool(failures) or not balance.adds_up)


def _recorded(events: Sequence[Event], meta: Mapping[str, Any]) -> History:
    """A history of exactly these events, so that the recording ends where the summary was taken."""
    history = History()
    history.meta.update(meta)
    for event in events:
        history.append(**asdict(event))
    return history


def _writable_folder(folder: str) -> Path:
    """The folder, made if need be: an hour's run must not fail at its end.

    Raises:
        CommandFailed: it can't be made or written.
    """
    path = Path(folder).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise CommandFailed(f"can't write to {path} ({error.strerror or error}): choose another with --out") from error
    return path


# --- why doesn't it work? ----------------------------------------------------------------------------


def version() -> str:
    """meetupq's version: as installed, or as the source tree says."""
    try:
        return importlib.metadata.version("meetupq")
    except importlib.metadata.PackageNotFoundError:
        file = PACKAGE.parent / "pyproject.toml"
        project = tomllib.loads(file.read_text()).get("project", {}) if file.is_file() else {}
        return f"{project.get('version', 'of unknown version')} (not installed)"


def _python() -> str:
    return f"{sys.version.split()[0]} ({sys.executable})"


def _library(name: str, least: str = "0") -> Callable[[], str]:
    def look() -> str:
        remedy = f"run `{Path(sys.executable).name} -m pip install -U {name}`"
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise CommandFailed(f"{name} is not installed: {remedy}") from None
        if _numbers(found) < _numbers(least):
            raise CommandFailed(f"{name} is {found}, but at least {least} is needed: {remedy}")
        return found

    return look


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".") if part.isdigit()]


def _server() -> str:
    if os.environ.get("MEETUPQ_NATS_URL"):
        return f"somebody else's, at {Broker().address} (MEETUPQ_NATS_URL)"
    server = find_server()
    return f"{server_version(server)} ({server})"


def _bind(port: int = 0) -> int:
    with socket.socket() as listener:
        if os.name != "nt":  # a port whose last user has just gone is free; on Windows this flag means something else
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        return int(listener.getsockname()[1])


def _loopback() -> str:
    try:
        return f"127.0.0.1:{_bind()} could be opened"
    except OSError as error:
        raise CommandFailed(
            f"no port on 127.0.0.1 can be opened ({error.strerror}): "
            "allow local connections in this sandbox, container or firewall"
        ) from error


def _temp_folder() -> str:
    try:
        with tempfile.TemporaryDirectory(prefix="meetupq-doctor-") as folder:
            file = Path(folder) / "written"
            file.write_bytes(b"0123456789abcdef" * 65536)
            return f"{Path(folder).parent} can be written ({file.stat().st_size >> 20} MB tried)"
    except OSError as error:
        raise CommandFailed(
            f"no temp folder can be written ({error.strerror or error}): set TMPDIR to a folder that can"
        ) from error


def _disk() -> str:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < ENOUGH_DISK:
        raise CommandFailed(
            f"only {free >> 20} MB are free in {folder}: free {ENOUGH_DISK >> 20} MB, or set TMPDIR to another disk"
        )
    return f"{free / 2**30:.1f} GB free in {folder}"


def _jetstream() -> str:
    return asyncio.run(_message_there_and_back())


async def _message_there_and_back() -> str:
    began = time.monotonic()
    name = f"meetupq-doctor-{secrets.token_hex(4)}"
    async with asyncio.timeout(30), Broker() as broker:
        client = await broker.connect("doctor")
        try:
            with asking("store a message and read it again", BrokerError):
                jetstream = client.jetstream(timeout=5)
                await jetstream.add_stream(name=name, subjects=[name])
                try:
                    receipt = await jetstream.publish(name, b"are you well?")
                    message = await jetstream.get_msg(name, seq=receipt.seq)
                finally:
                    await jetstream.delete_stream(name)
        finally:
            await client.close()
        if message.data != b"are you well?":
            raise CommandFailed("the server gave back another message than it was given: try another nats-server")
        took = time.monotonic() - began
        return f"nats-server {broker.version} stored a message and gave it back ({took:.2f} s with start)"


CHECKS: Final[tuple[tuple[str, Callable[[], str]], ...]] = (
    ("python", _python),
    ("meetupq", version),
    ("nats-py", _library("nats-py", "2.15")),
    ("jupyterlab", _library("jupyterlab", "4.2")),
    ("ipykernel", _library("ipykernel")),
    ("ipywidgets", _library("ipywidgets", "8.1")),
    ("matplotlib", _library("matplotlib", "3.9")),
    ("server", _server),
    ("loopback", _loopback),
    ("temp folder", _temp_folder),
    ("disk", _disk),
    ("jetstream", _jetstream),
)


def examine(checks: Sequence[tuple[str, Callable[[], str]]]) -> Iterator[tuple[str, bool, str]]:
    """Each check's name, whether it is well, and what was found or what to do."""
    for name, check in checks:
        try:
            yield name, True, check()
        except TimeoutError:
            yield name, False, "no answer in time: is this machine overloaded? Try again when it is quieter"
        except MeetupqError as error:
            yield name, False, str(error)
        except Exception as error:  # noqa: BLE001 - one check's surprise must not keep the others from being made
            yield name, False, f"{type(error).__name__}: {error}; please report this, it should not happen"


def run_doctor(arguments: argparse.Namespace) -> int:
    ill = 0
    for name, well, found in examine(CHECKS):
        ill += not well
        print(f"{'ok' if well else 'FAIL':<5} {name:<12} {found}", flush=True)
    print("all is well" if not ill else f"{ill} of {len(CHECKS)} checks failed; each line says what to do")
    return int(ill > 0)


# --- the command line --------------------------------------------------------------------------------


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 86400")
    return seconds


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to 65535")
    return int(text)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="meetupq",
        description="Run real NATS work queues on a stage, kill the workers, and see what the broker does.",
        epilog="examples:\n  meetupq lab\n  meetupq demo --seconds 60 --out show\n  meetupq doctor",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"meetupq {version()}")
    commands = top.add_subparsers(dest="command", metavar="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str, epilog: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        added.set_defaults(run=run)
        return added

    lab = command(
        "lab",
        run_lab,
        "open the course in JupyterLab",
        "The lessons are opened where they lie in a checkout of the repository. Elsewhere they are copied into\n"
        "./notebooks first; a file that you have changed is never overwritten. What follows -- goes to jupyter lab.\n\n"
        "examples:\n"
        "  meetupq lab\n"
        "  meetupq lab --timing talk               the talk's durations, 5/10/15 s\n"
        "  meetupq lab --dir ~/course --no-browser --port 8899\n"
        "  meetupq lab -- --ServerApp.ip=0.0.0.0   any option of jupyter lab",
    )
    lab.usage = "meetupq lab [-h] [--dir DIR] [--timing SET] [--port N] [--no-browser] [-- options of jupyter lab]"
    lab.add_argument("--dir", metavar="DIR", help="copy the lessons into DIR and open them there")
    lab.add_argument("--timing", choices=PRESETS, metavar="SET", help=f"durations of the labs: {', '.join(PRESETS)}")
    lab.add_argument("--port", type=_port, metavar="N", help="the port of JupyterLab; by default the first free one")
    lab.add_argument("--no-browser", dest="browser", action="store_false", help="only print the address")

    demo = command(
        "demo",
        run_demo,
        "run the talk's workload without Jupyter, kill workers, and see whether everything adds up",
        "An e-mail job every second, statistics every five; two jobs in ten always fail; workers are killed and come\n"
        "back. Writes deliveries.png, leases.png and recording.jsonl. With the talk's durations a job takes 45 s to\n"
        "die and a lease is reclaimed after some 21 s, so give it more than a minute.\n\n"
        "examples:\n"
        "  meetupq demo --seconds 90 --out show\n"
        "  meetupq demo --timing ci --seconds 10   short durations, for a first look",
    )
    demo.add_argument("--seconds", type=_seconds, default=60.0, metavar="N", help="how long (default: 60)")
    demo.add_argument("--out", default=".", metavar="DIR", help="where pictures and recording go (default: here)")
    demo.add_argument("--timing", choices=PRESETS, default="talk", metavar="SET", help="durations (default: talk)")
    demo.add_argument("--seed", type=int, default=1, metavar="N", help="which jobs fail, when kills come (default: 1)")

    command(
        "doctor",
        run_doctor,
        "check whether everything that meetupq needs works here",
        "Starts a nats-server, stores a message and reads it again. With MEETUPQ_NATS_URL set, that one is asked.\n\n"
        "examples:\n  meetupq doctor\n  MEETUPQ_NATS_URL=nats://localhost:4222 meetupq doctor",
    )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0, 1 for what went wrong, 2 for wrong usage, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    extra: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, extra = words[:cut], words[cut + 1 :]
    arguments = parser().parse_args(words)
    if extra and arguments.command != "lab":
        parser().error(f"only `meetupq lab` takes options after --, but here is {extra[0]!r}")
    arguments.extra = extra
    if hasattr(signal, "SIGTERM"):
        signal.signal(signal.SIGTERM, _terminated)
    try:
        return int(arguments.run(arguments))
    except MeetupqError as error:
        _say(f"meetupq: {error}")
        return 1
    except KeyboardInterrupt:
        _say("\nmeetupq: interrupted; everything is closed")
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep the interpreter from complaining at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _terminated(*_: object) -> NoReturn:
    raise SystemExit(143)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
