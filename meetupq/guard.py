"""The guard: a small process that owns other processes, and a folder, and outlives neither us nor them.

It runs as a script of its own (`python guard.py FOLDER PARENT PATIENCE [LOCK]`), in a session of its own, and imports
nothing of meetupq, so that it starts in some 25 ms. FOLDER is removed at the end ("" for none). PATIENCE is how long,
in seconds, it then lets its processes end by themselves; with 0 it kills them at once. LOCK is the descriptor of a
locked file that it inherits. It takes orders as JSON lines on stdin and answers on stdout:

    {"start": [argv]}                 -> {"pid": 123}, and {"exit": -9, "pid": 123} when that process ends
    {"start": [argv], "share": true}     the same for one that is spoken to: its stdin is a pipe, its stdout is ours
    {"signal": 15}                       sends the signal to the process that was started last
    {"signal": 15, "pid": 123}        -> {"signalled": 15, "pid": 123} when it was sent, or when it stands still
    {"tell": "a line", "pid": 123}       writes the line to the stdin of that process
    {"end": true}                        as the end of stdin

A start that fails is answered by {"failed": "why"}. Processes that share our stdout write lines of their own, each in
one write of at most PIPE_BUF bytes, which the system never mixes with others; all that one wrote comes before its exit.

When stdin ends, for whatever reason, our crash or SIGKILL included, it ends the processes and removes the folder. So it
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
    """Runs in the forked child: ask the Linux kernel to kill it if the guard itself is killed."""
    assert LIBC
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def say(**message: "int | str") -> None:
    """Answer, in a single write. After our side is gone nobody reads this; the end of stdin says what to do."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def end_all(processes: "list[subprocess.Popen[bytes]]", patience: float) -> None:
    """Without patience, SIGKILL and nothing before it: a frozen worker must not wake up and write once more."""
    if patience:
        for process in processes:
            if hasattr(signal, "SIGCONT"):
                process.send_signal(signal.SIGCONT)  # a frozen server can't hear the polite request
            process.terminate()
    deadline = time.monotonic() + patience
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            if patience:
                process.wait(max(0.0, deadline - time.monotonic()))
        process.kill()
    for process in processes:
        process.wait()


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    folder, parent, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    locks = [int(lock) for lock in sys.argv[4:]]
    processes: dict[int, subprocess.Popen[bytes]] = {}
    last = 0
    changing = threading.Lock()  # held while a process starts, and from the beginning of the end

    def report_exit(started: "subprocess.Popen[bytes]") -> None:
        code = started.wait()
        if started.stdin:
            with contextlib.suppress(OSError):
                started.stdin.close()
        say(exit=code, pid=started.pid)

    def end() -> None:
        changing.acquire()
        end_all(list(processes.values()), patience)
        for lock in locks:
            # Said aloud: the end of guard and server would do, were it not for a child that our parent may have forked
            # while it had the lock open.
            fcntl.flock(lock, fcntl.LOCK_UN)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_EVERY)
        end()

    threading.Thread(target=watch_parent, daemon=True).start()
    for line in sys.stdin:
        order = json.loads(line)
        process = processes.get(order.get("pid", last))
        if "start" in order:
            share = order.get("share", False)
            try:
                with changing:
                    # Forked on this thread on purpose: PDEATHSIG follows the forking thread, and this one lives to the
                    # end.
                    process = subprocess.Popen(
                        order["start"],
                        stdin=subprocess.PIPE if share else subprocess.DEVNULL,
                        stdout=None if share else subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        bufsize=0,
                        # The server holds the lock too: should the guard be killed, the store is in use for as long as
                        # the server lives, be it the moment until Linux kills it, or longer on a system that doesn't.
                        pass_fds=locks,
                        preexec_fn=die_with_the_guard if LIBC else None,
                    )
                    last = process.pid
                    processes[last] = process
            except (OSError, subprocess.SubprocessError) as error:
                say(failed=str(error))
                continue
            say(pid=process.pid)
            threading.Thread(target=report_exit, args=(process,), daemon=True).start()
        elif "signal" in order:
            if process is not None:
                process.send_signal(order["signal"])
            if "pid" in order:
                if hasattr(os, "waitid") and order["signal"] == signal.SIGSTOP:
                    with contextlib.suppress(ChildProcessError):  # it has ended
                        os.waitid(os.P_PID, order["pid"], os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                say(signalled=order["signal"], pid=order["pid"])
        elif "tell" in order and process is not None and process.stdin:
            # One that is frozen doesn't read: what doesn't fit into its pipe any more is lost, the guard must not wait.
            with contextlib.suppress(OSError, ValueError):
                if hasattr(os, "set_blocking"):
                    os.set_blocking(process.stdin.fileno(), False)
                process.stdin.write(order["tell"].encode() + b"\n")
        elif "end" in order:
            break
    end()


if __name__ == "__main__":
    main()
