"""Consumer groups: the list, one group with members and lag, its settings, and moves of its offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tandemmq.api.broker_admin import END_OF_QUEUE_MS
from tandemmq.console.pages.messages import read_time
from tandemmq.console.pages.topics import read_number
from tandemmq.console.render import quote_part
from tandemmq.console.view import Action, Answer, Page, PageError, View
from tandemmq.manage import groups
from tandemmq.manage.changes import answering_masters
from tandemmq.manage.progress import read_reports
from tandemmq.manage.reach import list_silent
from tandemmq.manage.resets import NewPosition, clone_offsets, preview_reset, reset_group
from tandemmq.manage.tools import CALL_TIMEOUT_S, Place, serving
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.codes import render_version
from tandemmq.protocol.topic_names import check_group

QUEUES_SHOWN_MAX: Final = 1000
"""The most queues on the page of one group; the page says so."""
MEMBERS_ASKED_MAX: Final = 20
"""The most members that are asked which queues they read; a larger group shows no readers."""
FLAGS: Final = (
    ("is_consume_enabled", "Consumption allowed"),
    ("is_from_min_enabled", "Start at the first offset"),
    ("is_broadcast_enabled", "Broadcasting allowed"),
    ("is_orderly", "In order"),
)
NUMBERS: Final = (
    ("retry_queue_count", "Retry queues", 65535),
    ("retry_count_max", "Most redeliveries", 1_000_000),
    ("consume_timeout_minutes", "Minutes for one message", 1_000_000),
)
_FIELDS: Final = (*(name for name, _ in FLAGS), *(name for name, _, _ in NUMBERS))


async def show_groups(view: View) -> Answer:
    """Shows all groups; members and lag only of those on this page of the table."""
    table = await _groups(view)
    has_system = view.query.get("system") == "1"
    listing = view.listing(
        [group for group in table.groups.values() if has_system or not group.is_system],
        search=lambda group: group.name,
        sorts={"name": lambda group: group.name, "brokers": lambda group: len(group.configs)},
    )
    states = await groups.read_states(view.tools, table, [group.name for group in listing.rows], view.now_ms)
    problems = list_silent(table.failed)
    return view.page("groups.html", listing=listing, states=states, has_system=has_system, problems=problems)


async def show_group(view: View) -> Answer:
    """Shows one group: members, subscriptions, progress in each queue, and settings at each broker."""
    table, group = await _group(view)
    state = await _state(view, table, group.name)
    readers: dict[MessageQueue, str] = {}
    if len(state.members.members) <= MEMBERS_ASKED_MAX:
        addresses = [target.address for target in table.targets]
        readers = (await read_reports(view.tools, addresses, group.name)).readers()
    return view.page(
        "group.html",
        title=group.name,
        group=group,
        state=state,
        readers=readers,
        differing=_differing(state),
        problems=list_silent(table.failed),
        settings=[(name, label) for name, label in FLAGS] + [(name, label) for name, label, _ in NUMBERS],
        render_version=render_version,
        queues_max=QUEUES_SHOWN_MAX,
    )


async def show_new(view: View) -> Answer:
    """Shows the form of a new group."""
    clusters = sorted({target.cluster for target in await view.targets()})
    return view.page("group_new.html", clusters=clusters, flags=FLAGS, numbers=NUMBERS)


async def create(view: View) -> Answer:
    """Creates a group at all masters of a cluster. Raises PageError for the name of an existing group."""
    name = view.form.get("name", "").strip()
    check_group(name)
    if name in (await _groups(view)).groups:
        raise PageError(409, f"the group {name} exists already")
    masters = await answering_masters(view.tools, Place(cluster=view.form.get("cluster", "")))
    await groups.change_group(view.tools, masters, name, _changes(view.form))
    return view.redirect(_path_of(name), f"Group {name} is created.")


async def show_settings(view: View) -> Answer:
    """Shows the form that changes a group."""
    _, group = await _group(view)
    return view.page("group_settings.html", group=group, flags=FLAGS, numbers=NUMBERS)


async def ask_change(view: View) -> Answer:
    """Shows the settings before and after a change."""
    _, group = await _group(view)
    changes = _changes(view.query)
    if not changes:
        raise PageError(400, "no new value is given")
    return view.confirm(
        f"Change group {group.name} at {', '.join(sorted(group.configs))}?",
        fields={name: view.query[name] for name in _FIELDS if view.query.get(name)},
        button="Change",
        back=f"{_path_of(group.name)}/settings",
        template="group_change.html",
        group=group,
        changes=changes,
    )


async def change(view: View) -> Answer:
    """Changes the group at each master that has it."""
    _, group = await _group(view)
    masters = await groups.find_group_masters(view.tools, group.name)
    await groups.change_group(view.tools, masters, group.name, _changes(view.form))
    return view.redirect(_path_of(group.name), f"Group {group.name} is changed.")


async def ask_delete(view: View) -> Answer:
    """Shows the members and the lag that a group would lose."""
    table, group = await _group(view)
    state = await _state(view, table, group.name)
    return view.confirm(
        f"Delete group {group.name}, its settings and its offsets, at {', '.join(sorted(group.configs))}?",
        button="Delete the group",
        back=_path_of(group.name),
        template="group_delete.html",
        state=state,
    )


async def delete(view: View) -> Answer:
    """Deletes the group and its offsets at each master that has it."""
    _, group = await _group(view)
    await groups.delete_everywhere(view.tools, group)
    return view.redirect("/groups", f"Group {group.name} is deleted.")


async def show_offsets(view: View) -> Answer:
    """Shows the forms that move the group's offsets."""
    table, group = await _group(view)
    state = await _state(view, table, group.name)
    return view.page(
        "group_offsets.html",
        group=group.name,
        topics=state.topics,
        online=len(state.members.members),
        problems=[*list_silent(table.failed), *state.problems],
    )


async def ask_reset(view: View) -> Answer:
    """Shows for each queue what a move of the offsets would skip or repeat."""
    name, topic = view.path["group"], view.query.get("topic", "")
    position = _position(view.query, view.now_ms)
    moves = await preview_reset(view.tools, name, topic, position)
    fields = {
        key: view.query[key] for key in ("topic", "to", "time", "queue", "offset") if view.query.get(key)
    }
    if position.time_ms > 0:
        # A time such as `2h` would mean another moment when the move is confirmed.
        fields["time"] = f"{position.time_ms:09}"
    return view.confirm(
        f"Move group {name} in topic {topic}?",
        fields=fields,
        button="Move the offsets",
        back=f"{_path_of(name)}/offsets",
        template="group_reset.html",
        time_ms=position.time_ms,
        moves=moves[:QUEUES_SHOWN_MAX],
        move_count=len(moves),
        skipped=sum(move.skipped for move in moves),
        repeated=sum(move.repeated for move in moves),
    )


async def reset(view: View) -> Answer:
    """Moves the offsets of a group, online or not."""
    name, topic = view.path["group"], view.form.get("topic", "")
    moved = await reset_group(view.tools, name, topic, _position(view.form, view.now_ms))
    return view.redirect(_path_of(name), f"Group {name} is moved in {len(moved)} queues of {topic}.")


async def ask_clone(view: View) -> Answer:
    """Asks before the offsets of another group replace those of this one."""
    name = view.path["group"]
    source, topic = await _find_copy(view, view.query)
    return view.confirm(
        f"Replace the offsets of group {name} in topic {topic} with those of group {source}?",
        fields={"source": source, "topic": topic},
        button="Copy the offsets",
        back=_path_of(name),
    )


async def clone(view: View) -> Answer:
    """Copies the offsets of another group in one topic."""
    name = view.path["group"]
    source, topic = await _find_copy(view, view.form)
    await clone_offsets(view.tools, source, name, topic)
    return view.redirect(_path_of(name), f"The offsets of {source} in {topic} are copied to {name}.")


# Inside


async def _groups(view: View) -> groups.ClusterGroups:
    return await groups.read_groups(view.tools, serving(await view.targets()))


async def _group(view: View) -> tuple[groups.ClusterGroups, groups.Group]:
    """Returns the group of the path. Raises PageError if no broker that answers has it: 404 only when all
    brokers answer.
    """
    table, name = await _groups(view), view.path["group"]
    if name not in table.groups:
        # A broker that answered the latest reading too late is asked, too.
        registered = [one.target for one in (await view.cluster()).brokers]
        table = await groups.read_groups(view.tools, serving(registered), timeout_s=CALL_TIMEOUT_S)
    if name not in table.groups:
        if table.failed:
            text = "; ".join(list_silent(table.failed))
            raise PageError(503, f"no broker that answers has the group {name}, but {text}")
        raise PageError(404, f"no broker has the group {name}")
    return table, table.groups[name]


async def _state(view: View, table: groups.ClusterGroups, name: str) -> groups.GroupState:
    return await groups.read_state(view.tools, [one.address for one in table.targets], name, view.now_ms)


async def _find_copy(view: View, given: Mapping[str, str]) -> tuple[str, str]:
    """Returns the source and the topic of a copy of offsets. Raises PageError if members of the group would
    overwrite the copy, or if there is nothing to copy.
    """
    name, source, topic = view.path["group"], given.get("source", ""), given.get("topic", "")
    if not source or not topic:
        raise PageError(400, "a topic and the group to copy from must be given")
    table = await _groups(view)
    state = await _state(view, table, name)
    if state.problems:
        raise PageError(409, f"members of {name} may be online: {'; '.join(state.problems)}")
    if state.members.members:
        raise PageError(409, f"members of {name} are online and would overwrite the offsets: stop them first")
    committed = await view.tools.cluster_admin.committed_offsets(source, topic)
    if all(offset is None for offset in committed.values()):
        raise PageError(404, f"group {source} has no offset in topic {topic}")
    return source, topic


def _position(given: Mapping[str, str], now_ms: int) -> NewPosition:
    """Returns the position that a form names. Raises PageError."""
    kind = given.get("to", "")
    if kind == "end":
        return NewPosition(END_OF_QUEUE_MS)
    if kind == "begin":
        return NewPosition(0)
    if kind == "time":
        at_ms = read_time(given.get("time", ""), now_ms)
        if at_ms is None:
            raise PageError(400, "give the time")
        return NewPosition(at_ms)
    if kind == "offset":
        broker, _, number = given.get("queue", "").rpartition("/")
        queue_id = read_number({"queue": number}, "queue", 0, 2**31 - 1)
        offset = read_number(given, "offset", 0, 2**63 - 1)
        if not broker or queue_id is None or offset is None:
            raise PageError(400, "an offset needs its queue, such as broker-a/0")
        return NewPosition(queue=MessageQueue(given.get("topic", ""), broker, queue_id), offset=offset)
    raise PageError(400, "choose the end, the begin, a time or an offset")


def _changes(given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of the settings that a form names. Raises PageError for an invalid value."""
    changes: dict[str, Any] = {
        name: given[name] == "yes" for name, _ in FLAGS if given.get(name) in ("yes", "no")
    }
    for name, _, high in NUMBERS:
        number = read_number(given, name, 0, high)
        if number is not None:
            changes[name] = number
    return changes


def _differing(state: groups.GroupState) -> list[str]:
    """Returns the topics to which members subscribe with different expressions at different brokers."""
    return [
        topic
        for topic, held in sorted(state.members.subscriptions.items())
        if len({(data.expression, data.expression_type) for data in held.values()}) > 1
    ]


def _path_of(group: str) -> str:
    return f"/groups/{quote_part(group)}"


PAGES: Final = (
    Page("/groups", "Groups", show_groups, menu="Data"),
    Page("/new-group", "New group", show_new),
    Action("/new-group", "Create a group", create),
    Page("/groups/{group}", "Group", show_group, refresh_s=5),
    Page("/groups/{group}/settings", "Change a group", show_settings),
    Action("/groups/{group}/change", "Change a group", change, preview=ask_change),
    Action("/groups/{group}/delete", "Delete a group", delete, preview=ask_delete),
    Page("/groups/{group}/offsets", "Move a group's offsets", show_offsets),
    Action("/groups/{group}/reset", "Move a group's offsets", reset, preview=ask_reset),
    Action("/groups/{group}/clone", "Copy a group's offsets", clone, preview=ask_clone),
)
