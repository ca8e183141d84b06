"""The parts that all pages share: sessions, audit list, templates, menu."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment
from starlette.responses import HTMLResponse, Response

from tandemmq import __version__
from tandemmq.console.audit import AuditLog
from tandemmq.console.render import make_environment
from tandemmq.console.sessions import Sessions
from tandemmq.console.view import SECTIONS, Page, View

STATIC: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
SENT_FORMS_MAX: Final = 10_000
"""The forms of dead letters that are remembered as sent; the oldest is forgotten."""


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

    def menu(self, view: View) -> list[tuple[str, list[Page]]]:
        """Returns the pages of each section; none before log-in."""
        if not view.session.is_admitted:
            return []
        sections = [(name, [one for one in self.pages if one.menu == name]) for name in SECTIONS]
        return [(name, pages) for name, pages in sections if pages]

    def silent(self, view: View) -> list[str]:
        """Returns the addresses of the brokers that did not answer the latest reading: what they hold is
        missing on pages that ask only `view.targets()`.
        """
        viewer = view.session.viewer
        if viewer is None or viewer.sampler.latest is None or not view.session.is_admitted:
            return []
        reading = viewer.sampler.latest
        return [one.address for one in reading.brokers if one.error and not one.is_denied]

    def render(self, view: View, template: str, status: int, values: Mapping[str, Any]) -> Response:
        """Renders a template with what all of them need; `title` may be replaced by the page."""
        page = view.page_of
        common = {
            "view": view,
            "title": page.title,
            "refresh_s": page.refresh_s if isinstance(page, Page) else 0,
            "menu": self.menu(view),
            "notice": self.sessions.take_notice(view.session),
            "silent": self.silent(view),
            "stamp": self.stamp,
            "version": __version__,
            "is_read_only": self.is_read_only,
            "csrf": view.session.csrf,
        }
        text = self.environment.get_template(template).render({**common, **values})
        # Half of a surrogate pair, which JSON can contain, has no bytes in UTF-8.
        return HTMLResponse(text.encode("utf-8", "replace"), status_code=status)
