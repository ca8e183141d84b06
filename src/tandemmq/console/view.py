"""The seam between the console and its pages: `Page` and `Action` describe them, `Frame` has what all of them
share, `View` is one request.

See `tandemmq.console.pages` for how to write a page.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

from jinja2 import Environment
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tandemmq import __version__
from tandemmq.console.audit import AuditLog
from tandemmq.console.listing import Listing, make_listing
from tandemmq.console.render import make_environment
from tandemmq.console.sampler import Sampler
from tandemmq.console.sessions import Session, Sessions, Viewer
from tandemmq.errors import NotPermitted
from tandemmq.manage.cluster import BrokerReading, ClusterReading
from tandemmq.manage.settings import HIDDEN
from tandemmq.manage.tools import Target, Tools

R = TypeVar("R")

Answer: TypeAlias = Response
Handler: TypeAlias = "Callable[[View], Awaitable[Response]]"

PAGE_TIMEOUT_S: Final = 10.0
ACTION_TIMEOUT_S: Final = 70.0
FORM_BYTES_MAX: Final = 256 * 1024
CONCEALED_CHARS_MIN: Final = 4
"""The length from which a secret is searched for in texts; a shorter one is part of many words."""
SECTIONS: Final = ("Cluster", "Data", "Clients", "Console")
"""The groups of the menu, in order."""
STATIC: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
SENT_FORMS_MAX: Final = 10_000
"""The forms of dead letters that are remembered as sent; the oldest is forgotten."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page at `path`, answered to GET. Parts in braces are in `View.path`.

    menu      the section of the menu in which the page is listed; empty: not in the menu
    refresh_s the script renews the page's content this often; 0: never
    is_open   served without log-in
    """

    path: str
    title: str
    handler: Handler
    menu: str = ""
    refresh_s: int = 0
    is_open: bool = False
    timeout_s: float = PAGE_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Action:
    """A change at `path`, made by POST with a CSRF token. It is refused in read-only mode and recorded in the
    audit list before and after.

    preview   answers GET at the same path with `View.confirm`: a page that shows the consequences; required
              for changes that lose data or interrupt clients
    secrets   the fields whose values are shown nowhere: not in the audit list, a notice, an error or a log;
              or a function that returns them for a form
    """

    path: str
    title: str
    handler: Handler
    preview: Handler | None = None
    secrets: tuple[str, ...] | Callable[[Mapping[str, str]], tuple[str, ...]] = ()
    form_bytes_max: int = FORM_BYTES_MAX
    timeout_s: float = ACTION_TIMEOUT_S

    def secrets_of(self, form: Mapping[str, str]) -> tuple[str, ...]:
        """Returns the secret fields of a form."""
        return self.secrets(form) if callable(self.secrets) else self.secrets


class PageError(Exception):
    """A page that cannot be shown: the HTTP status and a text for the user."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class Frame:
    """The console behind its pages. `static` has the files of the folder of that name, `stamp` their hash;
    `pipelines` is the folder with the progress of Spark pipelines, `served` has the directories of services
    that land many topics. `resending` has the groups whose dead letters are being sent again, `sent_forms`
    the newest forms that sent chosen ones.
    """

    sessions: Sessions
    audit: AuditLog
    pages: Sequence[Page]
    is_read_only: bool = False
    pipelines: Path | None = None
    served: Sequence[Path] = ()
    resending: set[str] = field(default_factory=set)
    sent_forms: deque[str] = field(default_factory=lambda: deque(maxlen=SENT_FORMS_MAX))
    environment: Environment = field(init=False, default_factory=make_environment)
    static: Mapping[str, bytes] = field(init=False)
    stamp: str = field(init=False)

    def __post_init__(self) -> None:
        folder = resources.files("tandemmq.console") / "static"
        self.static = {name: (folder / name).read_bytes() for name in STATIC}
        self.stamp = hashlib.sha256(b"".join(self.static.values())).hexdigest()[:12]


@dataclass(slots=True)
class View:
    """One request and its means to answer.

    path     the parts in braces of the page's path
    query    the parameters behind the `?`, the last value of each
    form     the fields of an action, the last value of each
    secrets  the values of secret fields
    fields   all fields of an action in order, for names with several values
    now_ms   the time of the request
    """

    frame: Frame
    session: Session
    page_of: Page | Action
    url: str
    address: str
    theme: str
    now_ms: int
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    fields: Sequence[tuple[str, str]] = ()
    secrets: Sequence[str] = ()

    # The user and the cluster

    @property
    def user(self) -> str:
        """The name of the user; empty for a visitor without log-in."""
        return self.session.user

    @property
    def audit_name(self) -> str:
        """The user's name in the audit list."""
        return self.user or "(visitor)"

    @property
    def viewer(self) -> Viewer:
        if self.session.viewer is None:
            raise NotPermitted("log in to see this page")
        return self.session.viewer

    @property
    def tools(self) -> Tools:
        """The connections that sign as the user who asks."""
        return self.viewer.tools

    @property
    def sampler(self) -> Sampler:
        """The rates of the last hour and the latest reading of the cluster."""
        return self.viewer.sampler

    @property
    def audit(self) -> AuditLog:
        return self.frame.audit

    @property
    def may_change(self) -> bool:
        """False in read-only mode, and for users whom the console's password file makes viewers. The brokers
        may still refuse a change.
        """
        return self.session.may_change and not self.frame.is_read_only

    @property
    def form(self) -> Mapping[str, str]:
        return dict(self.fields)

    async def cluster(self) -> ClusterReading:
        """Returns the latest reading of the brokers, at most some seconds old. Raises PageError when there is
        none.
        """
        reading = await self.sampler.ready(2.0)
        if reading is None:
            raise PageError(503, f"the cluster cannot be read: {self.sampler.error or 'no answer yet'}")
        return reading

    async def targets(self) -> list[Target]:
        """Returns the brokers that answered the latest reading; the others would only cost their timeout."""
        return [one.target for one in (await self.cluster()).answering]

    async def broker(self, address: str) -> BrokerReading:
        """Returns the latest reading of one broker. Raises PageError if none is registered there."""
        for one in (await self.cluster()).brokers:
            if one.address == address:
                return one
        raise PageError(404, f"no broker is registered at {address[:100]}")

    # Answers

    def conceal(self, text: str) -> str:
        """Returns the text without the secrets of the form, which a broker's answer may repeat."""
        for secret in self.secrets:
            if len(secret) >= CONCEALED_CHARS_MIN:
                text = text.replace(secret, HIDDEN)
        return text

    def page(self, template: str, /, status: int = 200, **values: Any) -> Answer:
        """Returns the page made from this template, with what all templates need; `title` may be replaced."""
        frame, page = self.frame, self.page_of
        common = {
            "view": self,
            "title": page.title,
            "refresh_s": page.refresh_s if isinstance(page, Page) else 0,
            "menu": self._menu(),
            "notice": frame.sessions.take_notice(self.session),
            "silent": self._silent(),
            "stamp": frame.stamp,
            "version": __version__,
            "is_read_only": frame.is_read_only,
            "csrf": self.session.csrf,
        }
        text = frame.environment.get_template(template).render({**common, **values})
        # Half of a surrogate pair, which JSON can contain, has no bytes in UTF-8.
        return HTMLResponse(text.encode("utf-8", "replace"), status_code=status)

    def _menu(self) -> list[tuple[str, list[Page]]]:
        """Returns the pages of each section; none before log-in."""
        if not self.session.is_admitted:
            return []
        sections = [(name, [one for one in self.frame.pages if one.menu == name]) for name in SECTIONS]
        return [(name, pages) for name, pages in sections if pages]

    def _silent(self) -> list[str]:
        """Returns the addresses of the brokers that did not answer the latest reading: what they hold is
        missing on pages that ask only `targets()`.
        """
        viewer = self.session.viewer
        if viewer is None or viewer.sampler.latest is None or not self.session.is_admitted:
            return []
        return [one.address for one in viewer.sampler.latest.brokers if one.error and not one.is_denied]

    def redirect(self, path: str, notice: str = "") -> Answer:
        """Returns a redirect to this path of the console, where the notice is shown once."""
        if notice:
            self.frame.sessions.leave_notice(self.session, self.conceal(notice))
        return RedirectResponse(path, status_code=303)

    def confirm(
        self,
        question: str,
        *,
        button: str,
        back: str,
        fields: Mapping[str, str] = MappingProxyType({}),
        template: str = "confirm.html",
        **values: Any,
    ) -> Answer:
        """Returns the page that asks before a change. `fields` are sent with it, `button` names the change,
        `back` is the link to leave without it. A template of your own extends confirm.html and fills its
        block `preview`.
        """
        return self.page(
            template, question=question, confirm_fields=fields, button=button, back=back, **values
        )

    def download(self, name: str, content: bytes, media_type: str) -> Answer:
        """Returns a file that the browser saves; its content is never shown as a page."""
        safe = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in name) or "download"
        headers = {
            "Content-Disposition": f'attachment; filename="{safe.encode("ascii", "replace").decode()}"'
        }
        return Response(content, media_type=media_type, headers=headers)

    def listing(
        self,
        items: Iterable[R],
        *,
        search: Callable[[R], str],
        sorts: Mapping[str, Callable[[R], Any]],
        default: str = "",
    ) -> Listing[R]:
        """Returns one page of a table as the query asks for (`listing.make_listing`)."""
        return make_listing(items, self.query, search=search, sorts=sorts, default=default)
