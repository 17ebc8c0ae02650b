"""Many items asked at once in an event loop of another thread, each result handed out as it comes.

Knows neither the questions nor whom they are put to.
"""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from stopadvisor.engines.errors import first_error

__all__ = ["asked_each"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def asked_each(
    portal: BlockingPortal,
    items: Sequence[_Item],
    ask: Callable[[_Item], Awaitable[_Result]],
    size: int,
) -> Iterator[tuple[int, _Result]]:
    """Ask for each item in the portal's loop, `size` at once; yield results with their numbers.

    Of several errors the first of ours is raised, after the results finished before it.  No
    item is asked while `size` results wait to be taken: a consumer that is slow, or killed,
    holds no more than that.
    """
    # Taken without a pause, so that what is asked at once can be decoded together.
    places = anyio.Semaphore(size, fast_acquire=True)
    # Items that are being asked, and results not yet taken.
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
    # Put there when the work is over, so after all its results.
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
