"""Worker processes: started, told, signalled and listened to through one guard, which none of them outlives.

A guard (see `guard`) owns them all. They speak to us on the guard's own stdout, one JSON line at a time, so that what a
worker said before its death always comes before the news of its death. That pipe isn't the network: we hear a worker
that is cut off from the broker, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from meetupq import guard
from meetupq.errors import MeetupqError

SIGKILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
"""What ends a process at once, here."""
GUARD_LIMIT: Final = 5.0
"""Seconds that the guard has to end everything, before it is killed itself."""

Line = dict[str, Any]


@dataclass(eq=False)
class Child:
    """One process.

    Attributes:
        owner: its guard.
        heard: called with each line that it says.
        pid: 0 until the guard has said it.
        exit: its exit code, once it has ended.
    """

    owner: subprocess.Popen[bytes]
    heard: Callable[[Line], None]
    started: asyncio.Future[None]
    exit: asyncio.Future[int]
    pid: int = 0
    signalled: deque[asyncio.Future[None]] = field(default_factory=deque)


class Processes:
    """The processes of one crew. All methods are called on one event loop, which they never hold up."""

    def __init__(self) -> None:
        self._guard: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._starting: deque[Child] = deque()
        self._children: dict[int, Child] = {}
        self._closed = False
        self._changing = threading.Lock()  # held by whoever starts or ends the guard

    async def start(self, argv: list[str], first_line: Line, heard: Callable[[Line], None]) -> Child:
        """Start a process, and write a line to its stdin; there is no safer place for a secret.

        Args:
            argv: its command line, which everybody on this machine can read.
            first_line: written as JSON.
            heard: called on the event loop with each line that the process says.

        Raises:
            MeetupqError: it can't be started.
        """
        loop = asyncio.get_running_loop()
        owner = await asyncio.to_thread(self._start_guard, loop)
        child = Child(owner, heard, loop.create_future(), loop.create_future())
        self._starting.append(child)
        self._order(start=argv, share=True)
        await child.started
        self.tell(child, first_line)
        return child

    def tell(self, child: Child, line: Line) -> None:
        """Write a line to the stdin of a process. One that is gone doesn't hear it."""
        self._order(tell=json.dumps(line), pid=child.pid)

    async def signal(self, child: Child, number: int) -> None:
        """Send a signal, and wait until it was sent. Of one that is gone nothing is asked.

        Raises:
            MeetupqError: the guard doesn't answer.
        """
        if not child.exit.done():
            sent = asyncio.get_running_loop().create_future()
            child.signalled.append(sent)
            self._order(signal=int(number), pid=child.pid)
            told = {sent, child.exit}
            done, _ = await asyncio.wait(told, timeout=GUARD_LIMIT, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise MeetupqError(f"the process that guards the workers did not answer within {GUARD_LIMIT:g} s")

    async def close(self) -> None:
        """Kill all processes, at once; nothing more is heard of them. Twice does no harm."""
        try:
            await asyncio.to_thread(self.abandon)
        except RuntimeError:
            self.abandon()  # Python is ending, and starts no threads any more
        self._lose(self._starting + deque(self._children.values()))

    def abandon(self) -> None:
        """The same from any thread and without an event loop. Twice does no harm."""
        self._closed = True
        self._end_guard()

    # --- the guard ---------------------------------------------------------------------------------

    def _start_guard(self, loop: asyncio.AbstractEventLoop) -> subprocess.Popen[bytes]:
        with self._changing:
            if self._closed:
                raise MeetupqError("the crew is closed: no process is started any more")
            if self._guard is not None and self._guard.poll() is None:
                return self._guard
            if self._guard is not None:
                self._bury(self._guard)  # somebody has killed it, and its processes with it
            package = str(Path(__file__).parent.parent)
            paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, "", str(os.getpid()), "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},  # they are to find the same meetupq as we did
                start_new_session=True,
            )
            self._reader = threading.Thread(
                target=self._read, args=(self._guard, loop), name="meetupq-processes", daemon=True
            )
            self._reader.start()
            return self._guard

    def _end_guard(self) -> None:
        with self._changing:
            if self._guard is None:
                return
            self._order(end=True)  # the end of the pipe alone may not reach it: a forked child can hold it open
            try:
                self._guard.wait(GUARD_LIMIT)
            except subprocess.TimeoutExpired:
                self._guard.kill()
            self._bury(self._guard)
            self._guard = None

    def _bury(self, ended: subprocess.Popen[bytes]) -> None:
        assert ended.stdin and ended.stdout and self._reader
        ended.wait()
        with contextlib.suppress(OSError):
            ended.stdin.close()
        self._reader.join(GUARD_LIMIT)  # until the last of its processes is gone
        ended.stdout.close()

    def _order(self, **order: Any) -> None:
        assert self._guard and self._guard.stdin
        with contextlib.suppress(OSError, ValueError):  # it was killed: the end of its stdout tells
            self._guard.stdin.write(json.dumps(order).encode() + b"\n")
            self._guard.stdin.flush()

    # --- what they say -----------------------------------------------------------------------------

    def _read(self, owner: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        """The reader's thread: hand over each line to the event loop, in order."""
        assert owner.stdout
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            for line in owner.stdout:
                try:
                    said = json.loads(line)
                except (ValueError, RecursionError):
                    continue  # not one of ours
                if isinstance(said, dict):
                    loop.call_soon_threadsafe(self._said, said)
            owner.wait()  # its pipe ends a moment before it does
            loop.call_soon_threadsafe(self._guard_gone, owner)

    def _said(self, line: Line) -> None:
        if self._closed:
            return
        if child := self._child(line, "from"):
            child.heard(line)
        elif "failed" in line and self._starting:
            _settle(self._starting.popleft().started, MeetupqError(f"no process can be started: {line['failed']}"))
        elif "exit" in line and (child := self._child(line, "pid")):
            del self._children[child.pid]
            _settle(child.exit, line["exit"])
        elif "signalled" in line and (child := self._child(line, "pid")) and child.signalled:
            _settle(child.signalled.popleft(), None)
        elif list(line) == ["pid"] and self._starting:
            child = self._starting.popleft()
            child.pid = line["pid"]
            self._children[child.pid] = child
            if child.started.cancelled():  # nobody waits for it any more
                self._order(signal=int(SIGKILL), pid=child.pid)
            _settle(child.started, None)

    def _child(self, line: Line, key: str) -> Child | None:
        pid = line.get(key)
        return self._children.get(pid) if isinstance(pid, int) else None

    def _guard_gone(self, owner: subprocess.Popen[bytes]) -> None:
        if not self._closed:
            lost = [child for child in (*self._starting, *self._children.values()) if child.owner is owner]
            self._starting = deque(child for child in self._starting if child not in lost)
            self._lose(lost)

    def _lose(self, children: Iterable[Child]) -> None:
        """Their guard is gone, and they with it."""
        for child in children:
            self._children.pop(child.pid, None)
            _settle(child.started, MeetupqError("the process that guards the workers was ended: launch again"))
            _settle(child.exit, -int(SIGKILL))


def _settle(future: asyncio.Future[Any], result: object) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
