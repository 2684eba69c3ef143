"""The command `meetupq`: its options, its help and its exit codes. What it does is in `course`, `demo` and `doctor`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from meetupq import course, demo, doctor
from meetupq.errors import MeetupqError
from meetupq.timing import PRESETS


def number(kind: Callable[[str], Any], least: int, most: int) -> Callable[[str], Any]:
    """A type of option for argparse: a number between two others."""

    def parse(text: str) -> Any:
        try:
            if least <= (value := kind(text)) <= most:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")

    return parse


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="meetupq",
        description="Run real NATS work queues on a stage, kill the workers, and see what the broker does.",
        epilog="examples:\n  meetupq lab\n  meetupq demo --seconds 60 --out show\n  meetupq doctor",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"meetupq {doctor.version()}")
    commands = top.add_subparsers(metavar="command", required=True)

    def command(name: str, run: Callable[..., int], text: str, epilog: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        added.set_defaults(run=run)
        return added

    lab = command(
        "lab",
        course.open_lab,
        "open the course in JupyterLab",
        "The lessons are opened where they lie in a checkout of the repository. Elsewhere they are copied into\n"
        "./notebooks first; a file that you have changed is never overwritten. What follows -- goes to jupyter lab.\n\n"
        "examples:\n"
        "  meetupq lab --timing talk               the talk's durations, 5/10/15 s\n"
        "  meetupq lab --dir ~/course --no-browser --port 8899\n"
        "  meetupq lab -- --ServerApp.ip=0.0.0.0   any option of jupyter lab",
    )
    lab.usage = "meetupq lab [-h] [--dir DIR] [--timing SET] [--port N] [--no-browser] [-- options of jupyter lab]"
    lab.set_defaults(extra=[])
    lab.add_argument("--dir", dest="folder", metavar="DIR", help="copy the lessons into DIR and open them there")
    lab.add_argument("--timing", choices=PRESETS, metavar="SET", help=f"durations of the labs: {', '.join(PRESETS)}")
    lab.add_argument("--port", type=number(int, 1, 65535), metavar="N", help="of JupyterLab; else the first free one")
    lab.add_argument("--no-browser", dest="browser", action="store_false", help="only print the address")

    show = command(
        "demo",
        demo.run,
        "run the talk's workload without Jupyter, kill workers, and see whether everything adds up",
        "An e-mail job every second, statistics every five; two jobs in ten always fail; workers are killed and come\n"
        "back. Writes deliveries.png, leases.png and recording.jsonl. With the talk's durations a job takes 45 s to\n"
        "die and a lease is reclaimed after some 21 s, so give it more than a minute.\n\n"
        "examples:\n"
        "  meetupq demo --seconds 90 --out show\n"
        "  meetupq demo --timing ci --seconds 10   short durations, for a first look",
    )
    show.add_argument("--seconds", type=number(float, 1, 86400), default=60.0, metavar="N", help="default: 60")
    show.add_argument("--out", default=".", metavar="DIR", help="where pictures and recording go (default: here)")
    show.add_argument("--timing", choices=PRESETS, default="talk", metavar="SET", help="durations (default: talk)")
    show.add_argument("--seed", type=int, default=1, metavar="N", help="which jobs fail, when kills come (default: 1)")

    command(
        "doctor",
        doctor.run,
        "check whether everything that meetupq needs works here",
        "Starts a nats-server, stores a message and reads it again. With MEETUPQ_NATS_URL set, that one is asked.\n\n"
        "examples:\n  meetupq doctor\n  MEETUPQ_NATS_URL=nats://localhost:4222 meetupq doctor",
    )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0, 1 for what went wrong, 2 for wrong usage, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)
    options = vars(parser().parse_args(words[:cut]))
    if extra := words[cut + 1 :]:
        if "extra" not in options:
            parser().error(f"only `meetupq lab` takes options after --, but here is {extra[0]!r}")
        options["extra"] = extra
    signal.signal(signal.SIGTERM, _terminated)
    try:
        return int(options.pop("run")(**options))
    except MeetupqError as error:
        print(f"meetupq: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nmeetupq: interrupted; everything is closed", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep the interpreter from complaining at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _terminated(*_: object) -> NoReturn:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
