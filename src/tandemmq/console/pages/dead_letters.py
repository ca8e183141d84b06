"""Dead letters: groups that have some, their letters, one letter to edit, sending again, export."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from tandemmq.client import ReceivedMessage
from tandemmq.console.listing import ROWS_MAX
from tandemmq.console.pages.messages import PAGE_ROWS, PREVIEW_BYTES_MAX, SCAN_TIMEOUT_S, make_row
from tandemmq.console.pages.topics import read_number
from tandemmq.console.render import quote_part
from tandemmq.console.view import Action, Answer, Page, PageError, View
from tandemmq.errors import NoRoute, TopicNotFound
from tandemmq.manage import dead_letters
from tandemmq.manage.bodies import make_printable, show_body
from tandemmq.manage.message_scan import scan_messages
from tandemmq.protocol.properties import is_reserved
from tandemmq.protocol.topic_names import dlq_topic, retry_topic
from tandemmq.units import MIB

RESEND_MAX: Final = 2_000
"""The most letters that one press of the button sends; the next one continues."""
CHOSEN_MAX: Final = 100
EDIT_BYTES_MAX: Final = 1 * MIB
_LETTER: Final = re.compile(r"([^/\s]+)/(\d{1,9})/(\d{1,18})")


async def show_groups(view: View) -> Answer:
    """Shows the groups that ever had a dead letter."""
    groups = await dead_letters.read_dead_letter_groups(view.tools)
    # Only few groups are counted before they are sorted: the numbers of each cost requests.
    counts = await dead_letters.read_dead_letter_counts(view.tools, groups if len(groups) <= ROWS_MAX else ())
    sorts: dict[str, Callable[[str], Any]] = {"group": lambda one: one}
    if counts:
        sorts |= {"kept": lambda one: counts[one].kept, "left": lambda one: counts[one].left}
    listing = view.listing(groups, search=lambda one: one, sorts=sorts)
    counts = counts or await dead_letters.read_dead_letter_counts(view.tools, listing.rows)
    return view.page("dead_letters.html", listing=listing, counts=counts, groups_max=dead_letters.GROUPS_MAX)


async def show_letters(view: View) -> Answer:
    """Shows the dead letters of a group, a part at a time."""
    group, order = view.path["group"], view.query.get("order", "newest")
    try:
        found = await scan_messages(
            view.tools,
            dlq_topic(group),
            newest_first=order != "oldest",
            count_max=PAGE_ROWS,
            resume=view.query.get("resume", ""),
            content_bytes_max=PREVIEW_BYTES_MAX,
        )
    except TopicNotFound:
        raise PageError(404, f"the group {group} never had a dead letter") from None
    except NoRoute:
        topic = dlq_topic(group)
        raise PageError(
            409, f"{topic} is not readable; `tandemmq admin updateTopic -t {topic} -p 6` allows it"
        ) from None
    return view.page(
        "dead_letters_group.html",
        title=f"Dead letters of {group}",
        group=group,
        count=await dead_letters.read_dead_letter_count(view.tools, group),
        found=found,
        rows=[make_row(one, f"/dead-letters/{quote_part(group)}/letter") for one in found.messages],
        order=order,
        export_max=dead_letters.EXPORT_MAX,
        origin=dead_letters.ORIGIN,
    )


async def show_letter(view: View) -> Answer:
    """Shows one dead letter with a form to change it before it is sent."""
    letter = await _letter_of(view)
    origin = dead_letters.origin_of(letter)
    return view.page(
        "dead_letter.html",
        title=f"Dead letter of {view.path['group']}",
        group=view.path["group"],
        letter=letter,
        properties=sorted(letter.properties.items()),
        own=[pair for pair in sorted(letter.properties.items()) if not is_reserved(pair[0])],
        body=show_body(letter.record.body, letter.record.sys_flag),
        text=_editable_text(letter),
        origin=origin,
        origin_mark=dead_letters.ORIGIN,
        resent={
            topic: await dead_letters.count_resent(view.tools, letter, topic)
            for topic in _targets(view, origin)
        },
        printable=make_printable,
        path=view.url.partition("?")[0],
        form=secrets.token_hex(8),
    )


def _editable_text(letter: ReceivedMessage) -> str | None:
    """Returns the body if a browser's form returns it unchanged: text without control characters, whose line
    ends are all LF or all CR LF.
    """
    body = bytes(letter.body)
    if len(body) > EDIT_BYTES_MAX or letter.body_fault:
        return None
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    plain = text.replace("\r\n", "\n")
    is_uniform = plain == text or plain.count("\n") == text.count("\r\n")
    return text if is_uniform and make_printable(plain) == plain else None


def _targets(view: View, origin: str) -> list[str]:
    return [retry_topic(view.path["group"]), *([origin] if origin else [])]


async def _letter_of(view: View) -> ReceivedMessage:
    """Returns the letter of the path. Raises PageError if there is none."""
    letter = await dead_letters.find_letter(
        view.tools,
        view.path["group"],
        view.path["broker"],
        read_number(view.path, "queue", 0, 2**31 - 1) or 0,
        read_number(view.path, "offset", 0, 2**63 - 1) or 0,
    )
    if letter is None:
        raise PageError(404, "there is no dead letter at this offset: it may be deleted by now")
    return letter


# Sending


async def _chosen(view: View, names: Sequence[str]) -> list[ReceivedMessage]:
    """Returns the letters of these positions. Raises PageError for an invalid one."""
    if len(names) > CHOSEN_MAX:
        raise PageError(400, f"{len(names)} dead letters are chosen: at most {CHOSEN_MAX} at once")
    letters = []
    for name in names:
        place = _LETTER.fullmatch(name)
        if place is None:
            raise PageError(400, f"{name[:80]!r} is not a position such as broker-a/0/17")
        letter = await dead_letters.find_letter(
            view.tools, view.path["group"], place[1], int(place[2]), int(place[3])
        )
        if letter is None:
            raise PageError(404, f"there is no dead letter at {name}: it may be deleted by now")
        letters.append(letter)
    return letters


async def ask_resend(view: View) -> Answer:
    """Shows which letters would be sent where, and which were sent before."""
    group, to = view.path["group"], _target_of(view.query)
    names = [value for name, value in parse_qsl(urlsplit(view.url).query) if name == "letter"]
    letters = await _chosen(view, names)
    sender = dead_letters.DeadLetterSender(view.tools, group, to)
    rows = [(one, sender.target_of(one)) for one in letters]
    resent = {
        one.message_id: await dead_letters.count_resent(view.tools, one, target) for one, target in rows
    }
    count = await dead_letters.read_dead_letter_count(view.tools, group)
    amount = len(letters) if names else min(count.left or 0, RESEND_MAX)
    where = "the topic of each letter" if to == dead_letters.ORIGIN else to or retry_topic(group)
    return view.confirm(
        f"Send {amount} dead letters of {group} to {where}?",
        fields={"letters": " ".join(names), "to": to, "form": secrets.token_hex(8)},
        button=f"Send {amount}",
        back=f"/dead-letters/{quote_part(group)}",
        template="dead_letters_resend.html",
        rows=rows,
        resent=resent,
        count=count,
        is_all=not names,
        resend_max=RESEND_MAX,
        resend_count=dead_letters.RESEND_COUNT,
    )


def _target_of(given: Mapping[str, str]) -> str:
    """Returns the target that a form names: the retry topic, the letters' origin, or a topic."""
    kind, topic = given.get("to", ""), given.get("topic", "").strip()
    if kind != "topic":
        return kind
    if not topic:
        raise PageError(400, "name the topic to which the letters are sent")
    return topic


@contextmanager
def _sending(view: View) -> Iterator[None]:
    """Sends once for a form, and for a group one request at a time, so that a double click or a page that is
    loaded again does not send letters twice. Raises PageError for a second one.
    """
    group, form, frame = view.path["group"], view.form.get("form", ""), view.frame
    if group in frame.resending:
        raise PageError(409, f"dead letters of {group} are being sent now: wait for the end, then look again")
    if form in frame.sent_forms:
        raise PageError(409, "this form was sent already: open the page again to send once more")
    frame.resending.add(group)
    if form:
        frame.sent_forms.append(form)
    try:
        yield
    finally:
        frame.resending.discard(group)


async def resend(view: View) -> Answer:
    """Sends the chosen letters, or the next ones of all."""
    group, names, to = view.path["group"], view.form.get("letters", "").split(), view.form.get("to", "")
    with _sending(view):
        if names:
            outcome = await dead_letters.resend_chosen(view.tools, group, to, await _chosen(view, names))
        else:
            outcome = await dead_letters.resend_all(view.tools, group, to, count_max=RESEND_MAX)
    return _answer(view, outcome)


def _answer(view: View, outcome: dead_letters.Resent) -> Answer:
    if outcome.error:
        raise PageError(
            502, f"{outcome.error}. {outcome.sent} dead letters were sent before, {outcome.left} are left"
        )
    text = f"{outcome.sent} dead letters are sent"
    if outcome.left:
        text += f"; {outcome.left} are left: send again to continue"
    text += "".join(f"; {one}" for one in outcome.notes[:10])
    return view.redirect(f"/dead-letters/{quote_part(view.path['group'])}", text)


async def send_edited(view: View) -> Answer:
    """Sends one letter with the changes of the form."""
    letter = await _letter_of(view)
    form = view.form
    is_text = "body" in form
    # Browsers send line ends as CR LF; those of the letter are kept.
    body = form.get("body", "")
    if is_text and b"\r\n" not in bytes(letter.body):
        body = body.replace("\r\n", "\n")
    raw = body.encode("utf-8", "replace")
    edit = dead_letters.LetterEdit(
        body=raw if is_text and raw != bytes(letter.body) else None,
        tags=form.get("tags"),
        keys=form.get("keys"),
        properties=_properties_of(view),
    )
    target = _target_of(form)
    with _sending(view):
        outcome = await dead_letters.resend_chosen(view.tools, view.path["group"], target, [letter], edit)
    return _answer(view, outcome)


def _properties_of(view: View) -> dict[str, str]:
    """Returns the application's properties of the form: pairs of fields `name` and `value`."""
    names = [value.strip() for field, value in view.fields if field == "name"]
    values = [value for field, value in view.fields if field == "value"]
    return {name: value for name, value in zip(names, values, strict=False) if name and value}


async def export(view: View) -> Answer:
    """Answers with the letters of the group as JSON lines."""
    group = view.path["group"]
    content, is_cut = await dead_letters.export_letters(view.tools, group)
    return view.download(
        f"dead-letters-{group}{'-first' if is_cut else ''}.jsonl", content, "application/jsonl"
    )


_GROUP: Final = "/dead-letters/{group}"
_PLACE: Final = _GROUP + "/letter/{broker}/{queue}/{offset}"

PAGES: Final = (
    Page("/dead-letters", "Dead letters", show_groups, menu="Data"),
    Page(_GROUP, "Dead letters of a group", show_letters, timeout_s=SCAN_TIMEOUT_S),
    Page(_GROUP + "/export", "Export of dead letters", export, timeout_s=SCAN_TIMEOUT_S),
    Page(_PLACE, "Dead letter", show_letter),
    Action(_GROUP + "/resend", "Send dead letters again", resend, preview=ask_resend),
    Action(
        _PLACE + "/send",
        "Send a changed dead letter",
        send_edited,
        secrets=("body",),
        form_bytes_max=4 * EDIT_BYTES_MAX,
    ),
)
