"""Run an asynchronous function over many items in another thread's event loop."""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from stopadvisor.engines.errors import first_error

__all__ = ["ask_each"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def ask_each(
    portal: BlockingPortal,
    items: Sequence[_Item],
    ask: Callable[[_Item], Awaitable[_Result]],
    size: int,
) -> Iterator[tuple[int, _Result]]:
    """Call `ask` for each item, `size` at once; yield numbered results as they complete.

    If calls fail, raises the first `StopAdvisorError` after yielding the results before it.  No
    item is started while `size` results wait, so a slow or killed consumer loses no more than that.
    """
    # Acquired without yielding to the loop, so that a local model can batch concurrent items.
    places = anyio.Semaphore(size, fast_acquire=True)
    # Items in progress and results that wait.
    room = anyio.Semaphore(2 * size, fast_acquire=True)
    done: queue.SimpleQueue[tuple[int, _Result] | None] = queue.SimpleQueue()

    async def one(number: int, item: _Item) -> None:
        async with places:
            done.put((number, await ask(item)))

    async def work() -> None:
        async with anyio.create_task_group() as group:
            for number, item in enumerate(items):
                await room.acquire()
                group.start_soon(one, number, item)

    running = portal.start_task_soon(work)
    # Called when the work is done, so this comes after all results.
    running.add_done_callback(lambda _: done.put(None))
    try:
        while (result := done.get()) is not None:
            yield result
            portal.start_task_soon(room.release)
        running.result()
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    finally:
        if not running.done():
            running.cancel()
