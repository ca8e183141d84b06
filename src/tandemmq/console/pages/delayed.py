"""Waiting messages: on delay levels and in the timer topic, by topic and due time; cancelling by handle."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tandemmq.console.view import Action, Answer, Page, PageError, View
from tandemmq.manage.delayed import WaitingMessage, cancel, handle_of, read_all_waiting

PAGE_TIMEOUT_S: Final = 15.0
TOPICS_MAX: Final = 100
HANDLE_CHARS_MAX: Final = 1_024


async def show_delayed(view: View) -> Answer:
    """Shows the levels, the topics and the messages that wait."""
    found = await read_all_waiting(view.tools, (await view.cluster()).masters, view.now_ms)
    listing = view.listing(
        found.messages,
        search=lambda one: f"{one.topic} {one.unique_key} {one.keys} {one.tags} {one.broker_name}",
        sorts={
            "due": lambda one: one.due_at_ms,
            "topic": lambda one: one.topic,
            "stored": lambda one: one.stored_at_ms,
        },
    )
    topics = Counter(one.topic for one in found.messages)
    return view.page(
        "delayed.html",
        listing=listing,
        levels=[(target.broker_name, level) for target, level in found.levels],
        topics=topics.most_common(TOPICS_MAX),
        counted=found.timer_counts.most_common(TOPICS_MAX),
        is_cut=found.is_cut,
        errors=sorted((target.broker_name, error) for target, error in found.failed.items()),
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
