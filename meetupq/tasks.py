"""Ending asyncio tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

AGAIN: Final = 0.05


async def drop(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until they are gone, whatever they end with.

    Once is not enough: up to Python 3.11 `asyncio.wait_for` can swallow a cancellation that arrives together with the
    result (nats-py uses it everywhere), and nats-py turns a cancelled wait on a closed connection into an error. A loop
    that waits for its broker would then go on for ever.
    """
    cancelled = False
    while alive := {task for task in tasks if not task.done()}:
        for task in alive:
            task.cancel()
        try:
            await asyncio.wait(alive, timeout=AGAIN)
        except asyncio.CancelledError:
            cancelled = True  # we are dropped ourselves: first see these out
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen, so that asyncio doesn't complain about it
    if cancelled:
        raise asyncio.CancelledError


async def together(**works: Coroutine[Any, Any, Any]) -> None:
    """Run several works side by side, under their names, until all are done or one fails; none is left running.

    (A `TaskGroup` cancels its tasks once only; see `drop`.)
    """
    tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await drop(*tasks)
