"""Waiting messages: on delay levels and in the timer topic, by topic and due time; cancelling by handle."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tandemmq.console.view import Action, Answer, Page, PageError, View
from tandemmq.manage.delayed import WaitingMessage, cancel, handle_of, read_waiting
from tandemmq.manage.reach import answers_of, ask_each, errors_of

READ_TIMEOUT_S: Final = 5.0
"""The time for a broker's answers: up to some thousand messages are read."""
PAGE_TIMEOUT_S: Final = 15.0
TOPICS_MAX: Final = 100
HANDLE_CHARS_MAX: Final = 1_024


async def show_delayed(view: View) -> Answer:
    """Shows the levels, the topics and the messages that wait."""
    targets = await view.targets(masters_only=True)
    reached = await ask_each(
        targets, lambda one: read_waiting(view.tools, one, view.now_ms), timeout_s=READ_TIMEOUT_S
    )
    found = answers_of(reached)
    messages = [message for _, one in found for message in one.messages]
    listing = view.listing(
        messages,
        search=lambda one: f"{one.topic} {one.unique_key} {one.keys} {one.tags} {one.broker_name}",
        sorts={
            "due": lambda one: one.due_at_ms,
            "topic": lambda one: one.topic,
            "stored": lambda one: one.stored_at_ms,
        },
    )
    counted: Counter[str] = Counter()
    for _, one in found:
        counted.update(one.timer_counts)
    topics = Counter(one.topic for one in messages)
    return view.page(
        "delayed.html",
        listing=listing,
        levels=[(target.broker_name, level) for target, one in found for level in one.levels],
        topics=topics.most_common(TOPICS_MAX),
        counted=counted.most_common(TOPICS_MAX),
        is_cut=any(one.is_cut for _, one in found),
        errors=sorted((target.broker_name, error) for target, error in errors_of(reached).items()),
        handle_of=_handle_of,
    )


def _handle_of(message: WaitingMessage) -> str:
    """Returns the handle that cancels a message; empty if nothing can."""
    return handle_of(message) if message.level is None and message.unique_key else ""


async def ask_cancel(view: View) -> Answer:
    """Asks before a timer message is cancelled."""
    handle = _given(view.query.get("handle", ""))
    return view.confirm(
        "Cancel this timer message? It will not be delivered, and this cannot be undone.",
        fields={"handle": handle},
        button="Cancel the message",
        back="/delayed",
    )


def _given(text: str) -> str:
    text = text.strip()
    if not text or len(text) > HANDLE_CHARS_MAX:
        raise PageError(400, "give the recall handle that the send returned")
    return text


async def cancel_message(view: View) -> Answer:
    """Cancels the message of a handle."""
    unique_key = await cancel(view.tools, _given(view.form.get("handle", "")))
    return view.redirect("/delayed", f"{unique_key} is cancelled, if it was still waiting")


PAGES: Final = (
    Page("/delayed", "Delayed messages", show_delayed, menu="Data", timeout_s=PAGE_TIMEOUT_S),
    Action("/delayed/cancel", "Cancel a timer message", cancel_message, preview=ask_cancel),
)
