"""The application: routes of all pages and actions, and the checks before each.

Order of the checks: host name (against DNS rebinding), session, log-in, then for actions the origin, the size
of the form, the CSRF token and the right to change. Errors become pages with the reason.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tandemmq import errors
from tandemmq.console.audit import DONE
from tandemmq.console.sessions import LoginRefused, Session
from tandemmq.console.shield import Shield
from tandemmq.console.view import STATIC, Action, Frame, Page, PageError, View
from tandemmq.manage.settings import HIDDEN
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

FIELDS_MAX: Final = 2000
FIELD_NAMES_MAX: Final = 100
FIELD_NAME_CHARS_MAX: Final = 100
"""An entry of the audit list has all names of a form, so they are bounded."""
OUTCOME_UNKNOWN: Final = "the change may have been made, or may still be made; check before you repeat it"
OWN_FORM_BYTES_MAX: Final = 16 * 1024
THEMES: Final = ("auto", "light", "dark")
_STATUS: Final[tuple[tuple[type[errors.TandemError], int], ...]] = (
    (errors.NotPermitted, 403),
    (errors.TopicNotFound, 404),
    (errors.GroupNotFound, 404),
    (errors.BadRequest, 400),
    (errors.ConfigError, 400),
    (errors.BrokersAway, 409),
    (errors.PartlyChanged, 409),
    (errors.TopicExists, 409),
    (errors.TopicHasUnread, 409),
    (errors.BrokerUnreachable, 502),
    (errors.RequestTimeout, 504),
)


@dataclass(frozen=True, slots=True)
class Cookies:
    """The names and flags of the cookies. Browsers share cookies between ports, so one has the port in its
    name.
    """

    port: int
    is_secure: bool

    @property
    def session(self) -> str:
        return f"__Host-tandemmq-{self.port}" if self.is_secure else f"tandemmq-{self.port}"

    def set(self, response: Response, name: str, value: str, *, max_age: int | None = None) -> None:
        # Lax: with Strict a link from another site would arrive without the cookie, and the new session of a
        # visitor would replace the log-in. Changes are POST requests with a token and an Origin of this site.
        response.set_cookie(
            name, value, max_age=max_age, path="/", secure=self.is_secure, httponly=True, samesite="lax"
        )


class Console:
    """The endpoints: each wraps the handler of a page or an action with the checks."""

    def __init__(self, frame: Frame, actions: Sequence[Action], cookies: Cookies) -> None:
        self._frame = frame
        self._actions = actions
        self._cookies = cookies

    def routes(self) -> list[Route]:
        """Returns the routes of pages, actions, log-in and static files."""
        routes = [Route(one.path, self._shown(one), methods=["GET"]) for one in self._frame.pages]
        for action in self._actions:
            if action.preview is not None:
                page = Page(action.path, action.title, action.preview, timeout_s=action.timeout_s)
                routes.append(Route(action.path, self._shown(page, needs_change=True), methods=["GET"]))
            routes.append(Route(action.path, self._changed(action), methods=["POST"]))
        login = Page("/login", "Log in", self._show_login, is_open=True)
        routes += [
            Route("/login", self._shown(login), methods=["GET"]),
            self._own("/login", "Log in", self._log_in),
            self._own("/logout", "Log out", self._log_out),
            self._own("/theme", "Theme", self._set_theme),
            Route("/static/{name}", self._static, methods=["GET"]),
        ]
        return routes

    # Pages and actions

    def _shown(self, page: Page, *, needs_change: bool = False) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            view = await self._view(request, page)
            if not page.is_open and (refusal := await self._refusal(request, view)):
                return refusal
            if needs_change and not view.may_change:
                return self._failed(request, view, PageError(403, self._read_only_reason()))
            response, _ = await self._run(request, view, page.handler, page.timeout_s)
            return self._with_cookie(request, view.session, response)

        return endpoint

    def _changed(self, action: Action) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            view = await self._view(request, action)
            if refusal := await self._refusal(request, view):
                return refusal
            try:
                view.fields = await self._form(request, view.session, action.form_bytes_max)
                if not view.may_change:
                    raise PageError(403, self._read_only_reason())
            except PageError as error:
                return self._failed(request, view, error)
            secrets = action.secrets_of(view.form)
            view.secrets = [value for name, value in view.fields if name in secrets]
            try:
                entry = view.audit.begin(
                    view.audit_name,
                    view.address,
                    action.title,
                    request.scope["path"],
                    _recorded(view, secrets),
                )
            except OSError as error:
                text = f"nothing was changed, because the audit log cannot be written: {error.strerror}"
                return self._failed(request, view, PageError(503, text))
            response, failure = await self._run(request, view, action.handler, action.timeout_s)
            try:
                view.audit.finish(entry, f"failed: {failure}" if failure else DONE)
            except OSError as error:  # the change is made; its beginning is in the file
                log.error(events.CONSOLE_AUDIT_FAILED, extra={"reason": str(error), "number": entry.number})
            return self._with_cookie(request, view.session, response)

        return endpoint

    async def _run(
        self, request: Request, view: View, handler: Callable[[View], Awaitable[Response]], timeout_s: float
    ) -> tuple[Response, str]:
        """Returns the answer of a handler and the reason of its failure, empty for a success."""
        error: Exception
        try:
            async with asyncio.timeout(timeout_s):
                return await handler(view), ""
        except (PageError, errors.TandemError) as refusal:  # first: a RequestTimeout is also a TimeoutError
            error = refusal
        except TimeoutError:
            error = PageError(504, f"no answer from the cluster within {timeout_s:g} s")
        except Exception as fault:
            text = repr(fault)
            log.error(
                events.CONSOLE_PAGE_FAILED,
                extra={"path": request.scope["path"], "reason": view.conceal(text)},
                exc_info=view.conceal(text) == text,
            )
            error = PageError(500, f"an internal error: {text}")
        if request.method == "POST" and _status_of(error) == 504:
            error = PageError(504, f"{_reason_of(error)}: {OUTCOME_UNKNOWN}")
        return self._failed(request, view, error), view.conceal(_reason_of(error))

    def _failed(self, request: Request, view: View, error: Exception) -> Response:
        """Returns the page of an error, or of the log-in if a visitor lacks a right."""
        if isinstance(error, errors.NotPermitted) and not view.user and view.session.viewer is not None:
            return self._to_login(request, view)
        status, reason = _status_of(error), view.conceal(_reason_of(error))
        title = "No answer" if status == 504 else "Not possible"
        answer = view.page("error.html", status, reason=reason, code=status, title=title)
        return self._with_cookie(request, view.session, answer)

    def _read_only_reason(self) -> str:
        if self._frame.is_read_only:
            return "this console is read-only (--read-only)"
        return "your role is viewer: it allows no changes"

    async def _view(self, request: Request, page: Page | Action) -> View:
        held = request.cookies.get(self._cookies.session, "")
        is_click = "x-refresh" not in request.headers
        frame = self._frame
        theme = request.cookies.get("tandemmq-theme", "auto")
        return View(
            frame=frame,
            session=await frame.sessions.find(held, is_click=is_click),
            page_of=page,
            url=_path_of(request),
            address=request.client.host if request.client else "",
            theme=theme if theme in THEMES else "auto",
            now_ms=frame.sessions.clock.now_ms(),
            path={name: unquote(part) for name, part in request.path_params.items()},
            query=dict(request.query_params),
        )

    async def _form(self, request: Request, session: Session, bytes_max: int) -> list[tuple[str, str]]:
        """Returns the fields of a form. Raises PageError when it is foreign, too large or without a token."""
        origin = request.headers.get("origin")
        # Only the host is compared, because a proxy in front may terminate TLS.
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            raise PageError(403, f"the form comes from another site ({origin})")
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/x-www-form-urlencoded":
            raise PageError(415, "a form must be application/x-www-form-urlencoded")
        body = bytearray()
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > bytes_max:
                    raise PageError(413, f"the form is larger than {bytes_max} bytes")
        except ClientDisconnect:
            raise PageError(400, "the form is incomplete") from None
        try:
            fields = parse_qsl(bytes(body).decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
        except ValueError as error:
            raise PageError(400, f"an invalid form: {error}") from error
        names = {name for name, _ in fields}
        if len(names) > FIELD_NAMES_MAX or max(map(len, names), default=0) > FIELD_NAME_CHARS_MAX:
            raise PageError(
                400, f"a form has at most {FIELD_NAMES_MAX} names of {FIELD_NAME_CHARS_MAX} characters"
            )
        tokens = [value for name, value in fields if name == "csrf"]
        if not (tokens and hmac.compare_digest(tokens[-1].encode(), session.csrf.encode())):
            raise PageError(403, "the form is no longer valid: reload the page and repeat")
        return [(name, value) for name, value in fields if name != "csrf"]

    # Log-in

    async def _show_login(self, view: View) -> Response:
        return view.page("login.html", reason="", name="", next=_local_path(view.query.get("next", "/")))

    def _own(self, path: str, title: str, handle: Callable[[Request, View], Awaitable[Response]]) -> Route:
        """Returns the route of a form of the console itself."""

        async def endpoint(request: Request) -> Response:
            view = await self._view(request, Page(path, title, self._show_login, is_open=True))
            try:
                view.fields = await self._form(request, view.session, OWN_FORM_BYTES_MAX)
            except PageError as error:
                return self._failed(request, view, error)
            return await handle(request, view)

        return Route(path, endpoint, methods=["POST"])

    async def _log_in(self, request: Request, view: View) -> Response:
        name, target = view.form.get("name", ""), _local_path(view.form.get("next", "/"))
        try:
            session = await self._frame.sessions.log_in(view.address, name, view.form.get("secret", ""))
        except errors.TandemError as error:
            status = 429 if "too many attempts" in str(error) else 401
            if not isinstance(error, LoginRefused):
                status = 502
            answer = view.page("login.html", status, reason=str(error), name=name, next=target)
            return self._with_cookie(request, view.session, answer)
        if view.user:
            await self._frame.sessions.end(view.session)
        return self._with_cookie(request, session, RedirectResponse(target, status_code=303))

    async def _log_out(self, _: Request, view: View) -> Response:
        await self._frame.sessions.end(view.session)
        response = RedirectResponse("/login", status_code=303)
        response.delete_cookie(self._cookies.session, path="/", secure=self._cookies.is_secure, httponly=True)
        return response

    async def _refusal(self, request: Request, view: View) -> Response | None:
        """Returns the answer to a browser that must log in first, or cannot be served; None for the others.
        It precedes every page and action except those that are open.
        """
        session = view.session
        if session.outage:
            return self._failed(request, view, PageError(502, session.outage))
        if session.viewer is not None and not session.user:
            try:
                await view.cluster()  # shows whether it has access control
            except PageError as error:
                if session.is_admitted:
                    return self._failed(request, view, error)
        return None if session.is_admitted else self._to_login(request, view)

    def _to_login(self, request: Request, view: View) -> Response:
        target = _path_of(request) if request.method == "GET" else "/"
        return self._with_cookie(
            request, view.session, RedirectResponse(f"/login?next={quote(target, safe='')}", status_code=303)
        )

    def _with_cookie(self, request: Request, session: Session, response: Response) -> Response:
        if request.cookies.get(self._cookies.session) != session.id:
            self._cookies.set(response, self._cookies.session, session.id)
        return response

    # The look

    async def _set_theme(self, _: Request, view: View) -> Response:
        response = RedirectResponse(_local_path(view.form.get("next", "/")), status_code=303)
        wanted = view.form.get("theme", "auto")
        theme = wanted if wanted in THEMES else "auto"
        self._cookies.set(response, "tandemmq-theme", theme, max_age=365 * 86400)
        return response

    async def _static(self, request: Request) -> Response:
        content = self._frame.static.get(request.path_params["name"])
        if content is None:
            raise HTTPException(404)
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(content, media_type=STATIC[request.path_params["name"]], headers=headers)

    async def not_found(self, request: Request, error: Exception) -> Response:
        """Answers a request for a path or a method that does not exist."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        view = await self._view(request, Page(request.url.path, "Not found", self._show_login, is_open=True))
        text = "there is no such page" if status == 404 else "this page does not accept such a request"
        return self._failed(request, view, PageError(status, text))


def build_app(
    frame: Frame,
    actions: Sequence[Action],
    *,
    port: int,
    is_secure: bool = False,
    host_names: Sequence[str] = (),
) -> ASGIApp:
    """Returns the application. It opens its connections at start-up and closes them at shutdown."""
    console = Console(frame, actions, Cookies(port, is_secure))

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        await frame.sessions.start()
        try:
            yield
        finally:
            await frame.sessions.close()
            frame.audit.close()

    app = Starlette(
        routes=console.routes(),
        exception_handlers={404: console.not_found, 405: console.not_found},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # it redirects to http:// behind a proxy that terminates TLS
    return Shield(app, host_names=host_names, is_secure=is_secure)


def _recorded(view: View, secrets: Sequence[str]) -> dict[str, str]:
    """Returns the values of an action for the audit list. Of several with one name the last comes first: it
    is the one that counts, and long texts are cut at their end. A form cannot replace what the path names.
    """
    values: dict[str, list[str]] = {}
    for name, value in reversed(view.fields):
        values.setdefault(name, []).append(value)
    shown = {name: HIDDEN if name in secrets else ", ".join(found) for name, found in values.items()}
    return {**shown, **view.path}


def _status_of(error: Exception) -> int:
    if isinstance(error, PageError):
        return error.status
    return next((number for kind, number in _STATUS if isinstance(error, kind)), 502)


def _reason_of(error: Exception) -> str:
    return getattr(error, "remark", "") or str(error) or type(error).__name__


def _path_of(request: Request) -> str:
    """Returns the path and the query of a request as a link has them."""
    path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _local_path(path: str) -> str:
    """Returns a path of this console; the first page for anything that leads elsewhere."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local and "\\" not in path else "/"
