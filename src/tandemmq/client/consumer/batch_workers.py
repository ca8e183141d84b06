"""Workers of a handler that gets several messages at a time.

One outcome counts for all messages of a call, except those that the handler has finished itself: sent back,
acknowledged, or put to the dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tandemmq.client.consumer.inbox import Received
from tandemmq.client.consumer.membership import DirectResult
from tandemmq.client.consumer.workers import HandlerOutcome, Workers, direct_result
from tandemmq.protocol.message import ReceivedMessage


class BatchWorkers(Workers):
    """The workers of a handler of lists. A worker takes the messages that are available."""

    async def work_in_loop(self) -> None:
        """Handles messages until the inbox is closed."""
        while deliveries := await self._take_batch():
            messages = [delivery.message for delivery in deliveries]
            await self._run(messages, partial(self._settle_all, deliveries))
            await self._clock.sleep(0)

    work_in_thread = work_in_loop

    async def _take_batch(self) -> list[Received]:
        options = self._options
        assert options.batch_count_max is not None
        if options.batch_linger_s and not options.orderly:
            await self._inbox.wait()
            if len(self._inbox) < options.batch_count_max:
                await self._clock.sleep(options.batch_linger_s)
        return await self._take(options.batch_count_max)

    async def _settle_all(self, deliveries: Sequence[Received], outcome: HandlerOutcome) -> None:
        for number, delivery in enumerate(deliveries):
            call_id = self._begin(delivery.message, outcome.took_s)
            is_done = await self._settle(delivery, outcome, call_id, is_logged=number == 0)
            if not is_done:
                return  # an orderly queue continues with this message and those behind it

    async def consume_directly(self, message: ReceivedMessage) -> DirectResult:
        """Calls the handler with this message alone, as `Workers.consume_directly`."""
        return await self._run([message], direct_result)
