"""The guard: a small process that owns one nats-server and its folder, and outlives neither us nor them.

It runs as a script of its own (`python guard.py FOLDER PARENT PATIENCE [LOCK]`), in a session of its own, and imports
nothing of meetupq, so that it starts in some 25 ms. PATIENCE is how long, in seconds, it lets a server end by itself;
LOCK is the descriptor of a locked file that it inherits. It takes orders as JSON lines on stdin and answers on stdout:

    {"start": [argv]}     -> {"pid": 123}, and {"exit": -9} when that process ends
    {"signal": 15}        sends the signal to the process
    {"end": true}         as the end of stdin

When stdin ends, for whatever reason, our crash or SIGKILL included, it ends the server and removes the folder. So it
does when its parent is gone although stdin goes on: a child that the parent has forked may hold the pipe open.
A process in a session of its own survives the Ctrl-C (and Jupyter's interrupt) that is meant for a cell.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

with contextlib.suppress(ImportError):  # not on Windows, where there is no LOCK either
    import fcntl

PR_SET_PDEATHSIG = 1
PARENT_EVERY = 0.5
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded before any fork


def die_with_the_guard() -> None:
    """Runs in the forked child: ask the Linux kernel to kill the server if the guard itself is killed."""
    assert LIBC
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    folder, parent, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    locks = [int(lock) for lock in sys.argv[4:]]
    process = None
    changing = threading.Lock()  # held while a server starts, and from the beginning of the end

    def say(**message: int) -> None:
        # After our side is gone nobody reads this; the end of stdin tells the guard what to do.
        with contextlib.suppress(OSError):
            print(json.dumps(message), flush=True)

    def report_exit(started: "subprocess.Popen[bytes]") -> None:
        say(exit=started.wait())

    def end() -> None:
        changing.acquire()
        if process is not None and process.poll() is None:
            if hasattr(signal, "SIGCONT"):
                process.send_signal(signal.SIGCONT)  # a frozen server can't hear the polite request
            process.terminate()
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for lock in locks:
            # Said aloud: the end of guard and server would do, were it not for a child that our parent may have forked
            # while it had the lock open.
            fcntl.flock(lock, fcntl.LOCK_UN)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_EVERY)
        end()

    threading.Thread(target=watch_parent, daemon=True).start()
    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            with changing:
                # Forked on this thread on purpose: PDEATHSIG follows the forking thread, and this one lives to the end.
                process = subprocess.Popen(
                    order["start"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    # The server holds the lock too: should the guard be killed, the store is in use for as long as the
                    # server lives, be it the moment until Linux kills it, or longer on a system that doesn't.
                    pass_fds=locks,
                    preexec_fn=die_with_the_guard if LIBC else None,
                )
            say(pid=process.pid)
            threading.Thread(target=report_exit, args=(process,), daemon=True).start()
        elif "signal" in order and process is not None:
            process.send_signal(order["signal"])
        elif "end" in order:
            break
    end()


if __name__ == "__main__":
    main()
