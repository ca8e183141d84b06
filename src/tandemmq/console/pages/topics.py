"""Topics: the list, one topic with its queues and consumers, and its creation, change and deletion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tandemmq.client.admin_topics import NEW_QUEUE_COUNT
from tandemmq.console.render import quote_part
from tandemmq.console.view import Action, Answer, Page, PageError, View
from tandemmq.manage import topics
from tandemmq.manage.reach import list_silent
from tandemmq.manage.tools import serving
from tandemmq.protocol.bodies.tables import PERMISSION_DEFAULT

KINDS: Final = ("all", *(kind.value for kind in topics.TopicKind))
PERMISSIONS: Final = ((6, "read and write"), (4, "read only"), (2, "write only"), (0, "none"))
QUEUES_MAX: Final = 65535
QUEUES_SHOWN_MAX: Final = 1000
"""The most queues on the page of one topic; the page says so."""


async def show_topics(view: View) -> Answer:
    """Shows all topics of one kind; the load only of those on this page of the table."""
    table = await topics.read_topics(view.tools, serving(await view.targets()))
    kind = view.query.get("kind", topics.TopicKind.USER)
    if kind not in KINDS:
        kind = topics.TopicKind.USER
    listing = view.listing(
        [topic for topic in table.topics.values() if kind in ("all", topic.kind)],
        search=lambda topic: topic.name,
        sorts={
            "name": lambda topic: topic.name,
            "type": lambda topic: topic.message_type,
            "queues": lambda topic: topic.read_queue_count,
            "brokers": lambda topic: len(topic.configs),
        },
    )
    loads = await topics.read_load(view.tools, table, [topic.name for topic in listing.rows])
    return view.page(
        "topics.html",
        listing=listing,
        loads=loads,
        kind=kind,
        kinds=KINDS,
        problems=list_silent(table.failed),
        permission_text=topics.permission_text,
    )


async def show_topic(view: View) -> Answer:
    """Shows one topic: load, settings at each broker, queues and consumers."""
    details = await _details(view)
    return view.page(
        "topic.html",
        title=details.topic.name,
        details=details,
        problems=list_silent(details.failed),
        permission_text=topics.permission_text,
        queues_max=QUEUES_SHOWN_MAX,
        can_change=details.topic.kind is not topics.TopicKind.SYSTEM,
    )


async def show_new(view: View) -> Answer:
    """Shows the form of a new topic."""
    clusters = sorted({target.cluster for target in await view.targets()})
    return view.page(
        "topic_new.html", clusters=clusters, permissions=PERMISSIONS, message_types=topics.MESSAGE_TYPES
    )


async def create(view: View) -> Answer:
    """Creates a topic at all masters of a cluster."""
    name, message_type = view.form.get("name", "").strip(), view.form.get("type", "")
    permission = _permission(view.form)
    await topics.create_topic(
        view.tools,
        name,
        cluster=view.form.get("cluster", ""),
        queue_count=read_number(view.form, "queues", 1, QUEUES_MAX) or NEW_QUEUE_COUNT,
        permission=PERMISSION_DEFAULT if permission is None else permission,
        attributes={topics.MESSAGE_TYPE: message_type} if message_type in topics.MESSAGE_TYPES else None,
    )
    return view.redirect(_path_of(name), f"Topic {name} is created.")


async def show_settings(view: View) -> Answer:
    """Shows the form that changes a topic."""
    details = await _details(view)
    return view.page("topic_settings.html", topic=details.topic, permissions=PERMISSIONS)


async def ask_change(view: View) -> Answer:
    """Shows the settings before and after a change, and the messages that it would hide from consumers."""
    details = await _details(view)
    changes = _changes(view.query)
    if not changes:
        raise PageError(400, "no new value is given")
    count = changes.get("read_queue_count", details.topic.read_queue_count)
    hidden = [queue for queue in details.queues if queue.queue_id >= count and queue.count]
    return view.confirm(
        f"Change topic {details.topic.name} at {_brokers(details.topic)}?",
        fields={name: view.query[name] for name in _FIELDS if view.query.get(name)},
        button="Change",
        back=f"{_path_of(details.topic.name)}/settings",
        template="topic_change.html",
        topic=details.topic,
        changes=changes,
        hidden=hidden,
    )


async def change(view: View) -> Answer:
    """Changes the topic at each master that has it. Read queues with unread messages stay unless forced."""
    details = await _details(view)
    name, changes = details.topic.name, _changes(view.form)
    masters = await topics.find_topic_masters(view.tools, details)
    await topics.change_topic(view.tools, masters, name, changes, force=view.form.get("force") == "yes")
    return view.redirect(_path_of(name), f"Topic {name} is changed.")


async def ask_delete(view: View) -> Answer:
    """Shows what would be lost with the topic."""
    details = await _details(view)
    return view.confirm(
        f"Delete topic {details.topic.name} with all its messages at {_brokers(details.topic)}?",
        button="Delete the topic",
        back=_path_of(details.topic.name),
        template="topic_delete.html",
        details=details,
    )


async def delete(view: View) -> Answer:
    """Deletes the topic in each cluster that has it, or nowhere while a broker of them does not answer."""
    details = await _details(view)
    await topics.delete_topic(view.tools, details)
    return view.redirect("/topics", f"Topic {details.topic.name} is deleted.")


# Inside

_FIELDS: Final = ("read_queues", "write_queues", "permission")


async def _details(view: View) -> topics.TopicDetails:
    return await topics.read_topic(view.tools, view.path["topic"], view.now_ms)


def _changes(given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of the settings that a form changes. Raises PageError for an invalid value."""
    changes = {
        "read_queue_count": read_number(given, "read_queues", 1, QUEUES_MAX),
        "write_queue_count": read_number(given, "write_queues", 1, QUEUES_MAX),
        "permission": _permission(given),
    }
    return {name: value for name, value in changes.items() if value is not None}


def _permission(given: Mapping[str, str]) -> int | None:
    number = read_number(given, "permission", 0, 6)
    if number not in (None, *(value for value, _ in PERMISSIONS)):
        raise PageError(400, f"permission {number}: must be 6, 4, 2 or 0")
    return number


def read_number(given: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    """Returns the number in a field of a form, None if it is empty. Raises PageError for any other text."""
    text = given.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and low <= int(text) <= high):
        raise PageError(400, f"{name.replace('_', ' ')} {text[:40]!r}: must be a number from {low} to {high}")
    return int(text)


def _brokers(topic: topics.Topic) -> str:
    return ", ".join(sorted(topic.configs))


def _path_of(topic: str) -> str:
    return f"/topics/{quote_part(topic)}"


PAGES: Final = (
    Page("/topics", "Topics", show_topics, menu="Data"),
    Page("/new-topic", "New topic", show_new),
    Action("/new-topic", "Create a topic", create),
    Page("/topics/{topic}", "Topic", show_topic),
    Page("/topics/{topic}/settings", "Change a topic", show_settings),
    Action("/topics/{topic}/change", "Change a topic", change, preview=ask_change),
    Action("/topics/{topic}/delete", "Delete a topic", delete, preview=ask_delete),
)
