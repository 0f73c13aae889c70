"""How many requests may be under way, and from when: slower after a rate limit, quicker again after replies."""

from __future__ import annotations

import asyncio
import time
from random import Random


class Throttle:
    """A gate that all requests to one endpoint pass.

    A rate limit closes it for everybody until the time that the server asked for, and halves the number of requests
    allowed under way; each reply adds to it again (additive increase, multiplicative decrease, as TCP does). Waiters
    come back spread over a quarter of the wait, so that the server does not meet them all at once.

    Args:
        most: requests under way at most.
        random: of the spread.
    """

    def __init__(self, most: int, random: Random) -> None:
        self.most, self.random = most, random
        self.limit = float(most)
        self.active = 0
        self.opens, self.spread = 0.0, 0.0
        self.stopped = asyncio.Event()
        self._changed = asyncio.Condition()

    async def enter(self) -> None:
        """Wait for a place. After `stop` nobody waits."""
        while True:
            while (wait := self.opens - time.monotonic()) > 0 and not self.stopped.is_set():
                await self.pause(wait + self.random.uniform(0, self.spread))
            async with self._changed:
                await self._changed.wait_for(lambda: self.active < int(self.limit) or self.stopped.is_set())
                if time.monotonic() >= self.opens or self.stopped.is_set():
                    self.active += 1
                    return

    async def leave(self, replied: bool) -> None:
        """Give the place back."""
        async with self._changed:
            self.active -= 1
            if replied:
                self.limit = min(self.most, self.limit + 1 / self.limit)
            self._changed.notify_all()

    def limited(self, wait: float, sent: float) -> None:
        """The server refused, for `wait` seconds from now, a request that was sent at `sent` (monotonic).

        Requests that were sent together and are refused together halve the limit once.
        """
        if sent >= self.opens:
            self.limit = max(1.0, self.limit / 2)
        self.opens = max(self.opens, time.monotonic() + wait)
        self.spread = max(0.5, wait / 4)

    async def pause(self, seconds: float) -> None:
        """Sleep, unless the work stops before."""
        try:
            await asyncio.wait_for(self.stopped.wait(), seconds)
        except TimeoutError:
            return

    async def stop(self) -> None:
        """Wake everybody."""
        self.stopped.set()
        async with self._changed:
            self._changed.notify_all()
