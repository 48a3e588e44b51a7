"""Answers the requests of the console, and passes all others on to the API.

A browser shows its token in a cookie, which no script can read and no foreign page can send. A form
changes something only when it comes from a page of this server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from headwater.errors import HeadwaterError
from headwater.kernel.declaring import Scope
from headwater.kernel.packaging import __version__
from headwater.serve.api.routes import status_of
from headwater.serve.api.service import Answer, ApiService
from headwater.serve.console.actions.action import Action
from headwater.serve.console.actions.table import ACTIONS
from headwater.serve.console.calls import ConsolePage, PageCall
from headwater.serve.console.pages.overview import letters_seen
from headwater.serve.console.pages.table import NAVIGATION, NO_PAGE, PAGES, SOURCES
from headwater.serve.console.render import Asset, find_asset, render
from headwater.serve.http.authorization import TOKEN_COOKIE, shown_grant
from headwater.serve.http.messages import (
    Admitted,
    Refused,
    Reply,
    Request,
    StreamedReply,
    name_of_part,
    own_fault,
)
from headwater.serve.tokens import Grant
from headwater.store.faults import call_for

log = logging.getLogger("headwater.serve.console")

HOME: Final = "/console"
_TO_HOME: Final = object()  # the action of a request for the root of the server
# What a stranger may send: a form with a token.
_FORM_BYTES: Final = 4096
# How long a page waits for a store that does not answer, before it says so.
_PATIENCE_S: Final = 8.0
_HTML: Final = "text/html; charset=utf-8"
_SAFE: Final = (
    b"Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    b"img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    b"frame-ancestors 'none'\r\n"
    b"X-Content-Type-Options: nosniff\r\nReferrer-Policy: same-origin\r\n"
    b"Cache-Control: no-store\r\n"
)


class _Asked(NamedTuple):
    """A request that was admitted: for a page with names in its path, or else for what."""

    grant: Grant | None
    page: ConsolePage | None = None
    names: tuple[str, ...] = ()
    signs_in: bool = False


class Console:
    """A Handler of HTTP: the console under its path, and the API under all others."""

    def __init__(self, api: ApiService) -> None:
        self._api = api
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pages = {tuple(page.path.split("/")[1:]): page for page in (*PAGES, *SOURCES)}

    @property
    def needs_token(self) -> bool:
        """Whether a client is anonymous until it shows a token."""
        return self._api.needs_token

    @property
    def headers(self) -> frozenset[bytes]:
        """The names of the headers that it looks at, in lower case."""
        return self._api.headers | {b"referer", b"sec-fetch-site"}

    def admit(self, method: str, path: str, authorization: str) -> Admitted:
        """Decide on a request by its head; raises Refused."""
        if not _is_own(path):
            return self._api.admit(method, path, authorization)
        scheme, _, token = authorization.partition(" ")
        shown = f"Bearer {token}" if scheme == "Cookie" else authorization
        return self._admit(method, path, shown_grant(self._api.served.tokens, shown))

    def admit_as(self, method: str, path: str, grant: Grant | None) -> Admitted:
        """Decide on a request of somebody whom the application around this has let in.

        None is nobody, who sees no page; raises Refused.
        """
        if not _is_own(path):
            return self._api.admit_as(method, path, grant)
        if grant is None or grant.widest is None:
            raise Refused(401, "this application has not let you in; sign in there")
        return self._admit(method, path, grant)

    def _admit(self, method: str, path: str, grant: Grant | None) -> Admitted:
        if method not in ("GET", "HEAD", "POST"):
            raise Refused(405, "the console takes GET and POST", "GET, HEAD, POST")
        if path in ("/", HOME + "/"):
            return Admitted(_TO_HOME, known=not self.needs_token)
        asset = find_asset(path.removeprefix(HOME + "/static/"))
        if asset is not None:
            return Admitted(asset, known=not self.needs_token)
        if path == HOME + "/sign-in":
            return Admitted(_Asked(grant, signs_in=True), grant is not None, _FORM_BYTES)
        if grant is None or grant.widest is None:
            # A change whose token has expired meanwhile is answered by a page, too.
            most = _FORM_BYTES if path == HOME + "/act" else 0
            return Admitted(_Asked(None, signs_in=True), False, most)
        if path == HOME + "/act":
            return Admitted(_Asked(grant), known=True)
        try:
            page, names = self._find(path)
        except Refused:  # a name that is no text: a person gets a page all the same
            page, names = NO_PAGE, ()
        return Admitted(_Asked(grant, page, names), known=True)

    def _find(self, path: str) -> tuple[ConsolePage, tuple[str, ...]]:
        parts = tuple(path.split("/")[2:])
        for pattern, page in self._pages.items():
            if len(pattern) != len(parts):
                continue
            names = []
            for want, part in zip(pattern, parts, strict=True):
                if want.startswith("{") and part:
                    names.append(name_of_part(part))
                elif want != part:
                    break
            else:
                return page, tuple(names)
        return NO_PAGE, ()

    def handle(self, request: Request, answer: Answer) -> Callable[[], Any] | None:
        """Answer a request that was admitted."""
        action = request.action
        if isinstance(action, Asset) or action is _TO_HOME:
            to_home = _redirect(request.root + HOME)
            answer(action.reply(request) if isinstance(action, Asset) else to_home)
            return None
        if not isinstance(action, _Asked):
            return self._api.handle(request, answer)
        task = asyncio.get_running_loop().create_task(self._answered(request))
        if request.caller is not None:
            call_for(task, (request.caller,))
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, answer))
        return None

    def _done(self, answer: Answer, task: asyncio.Task[Reply | StreamedReply]) -> None:
        self._tasks.discard(task)
        answer(task.result())

    async def _answered(self, request: Request) -> Reply | StreamedReply:
        asked: _Asked = request.action
        # Whoever signs in may be somebody else.
        grant = None if asked.signs_in else asked.grant
        call = self._call(request, grant or Grant("nobody", {}), asked.names)
        try:
            self._api.guard(request.headers)
            if asked.signs_in:
                return self._sign_in(call, known=asked.grant is not None)
            if asked.page is None:
                return await self._act(call)
            if request.method == "POST":
                raise Refused(405, "pages are read by GET", "GET, HEAD")
            async with asyncio.timeout(_PATIENCE_S):
                return await self._show(call, asked.page)
        except TimeoutError:
            text = f"the store has not answered for {_PATIENCE_S:.0f} s; it is down, or very busy"
            return self._fault(call, 503, text)
        except Refused as refused:
            return self._fault(call, refused.status, str(refused))
        except HeadwaterError as error:
            text = f"{type(error).__name__}: {error}"
            return self._fault(call, status_of(error), text)
        except Exception as error:  # noqa: BLE001  a page says what it can
            fault = own_fault(error)
            return self._fault(call, fault.status, str(fault))

    def _call(self, request: Request, grant: Grant, names: tuple[str, ...] = ()) -> PageCall:
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        return PageCall(self._api.served, grant, names, query, request, self._api.read_only)

    async def _show(self, call: PageCall, page: ConsolePage) -> Reply | StreamedReply:
        context = await page.shown(call)
        if isinstance(context, StreamedReply):
            return context
        if "see" in context:
            return _redirect(call.request.root + HOME + context["see"])
        if not page.template:
            return Reply(200, msgspec.json.encode(context), "application/json", _SAFE)
        return self._page(call, page.template, page.place, context)

    def _page(
        self, call: PageCall, template: str, place: str, context: dict[str, Any], status: int = 200
    ) -> Reply:
        root = call.request.root + HOME
        whole = status == 200 and call.grant.everywhere(Scope.READ)
        own = {
            "root": root,
            "place": place,
            "nav": NAVIGATION,
            "dead_count": letters_seen(call.served.watched.sweeps.latest, call.grant),
            "store": call.served.hw.store.where if call.grant.widest else "",
            "report": call.served.watched.facts.report() if whole else None,
            "away": self._away(call) if status in (200, 503) else None,
            "holder": call.grant.holder,
            "read_only": call.read_only,
            "needs_token": self.needs_token,
            "said": call.query.get("said", ""),
            "version": __version__,
            "now": time.strftime("%H:%M:%S UTC", time.gmtime()),
            "now_at_ms": int(time.time() * 1000),
            "api": call.request.root,
            "here": f"{root}{call.request.path.removeprefix(HOME)}",
            "asked": call.query,
            "address": call.address,
        }
        return Reply(status, render(template, own | context), _HTML, _SAFE)

    def _away(self, call: PageCall) -> str | None:
        """Return when the store last answered, if it does not now; empty if that is not known."""
        watch = call.served.watched.sweeps
        if watch.missing is None:
            return None
        known = watch.latest.at > -float("inf")
        at = time.gmtime(time.time() - (watch.clock() - watch.latest.at)) if known else None
        return "" if at is None else time.strftime("%H:%M:%S UTC", at)

    def _fault(self, call: PageCall, status: int, text: str) -> Reply:
        return self._page(call, "shared/fault.html", "", {"status": status, "text": text}, status)

    def _sign_in(self, call: PageCall, *, known: bool) -> Reply:
        request = call.request
        root = request.root + HOME
        form = dict(parse_qsl(request.body.decode("latin-1"), keep_blank_values=True))
        back = call.query.get("back") or f"{request.path}?{request.query}".rstrip("?")
        # A change that was sent with a token that has expired is not made after all.
        back = back if request.method != "POST" else form.get("back") or HOME
        if not back.startswith(HOME) or back.startswith(HOME + "/sign-in"):
            back = HOME
        if request.method != "POST":
            context = {"back": back, "wrong": False, "known": known}
            return self._page(call, "shared/sign_in.html", "", context, 200 if known else 401)
        self._check_own_page(request)
        token = form.get("token", "").strip()
        if form.get("out"):
            return _redirect(root, _cookie("", root, age=0))
        grant = shown_grant(self._api.served.tokens, f"Bearer {token}")
        if grant is None:
            return self._page(
                call, "shared/sign_in.html", "", {"back": back, "wrong": bool(token)}, 401
            )
        log.info("%s signed in to the console", grant.holder)
        secure = (request.headers or {}).get(b"origin", b"").startswith(b"https:")
        return _redirect(root + back.removeprefix(HOME), _cookie(token, root, secure=secure))

    def _check_own_page(self, request: Request) -> None:
        """Check that a form was sent by a page of this server; raises Refused."""
        headers = request.headers or {}
        site = headers.get(b"sec-fetch-site")
        origin = headers.get(b"origin")
        if site is not None and site != b"same-origin":
            raise Refused(403, "this form was sent by a page of another site")
        if origin is not None and origin.partition(b"://")[2] != headers.get(b"host", b""):
            raise Refused(403, "this form was sent by a page of another site")

    async def _act(self, call: PageCall) -> Reply:
        request = call.request
        if request.method == "POST":
            self._check_own_page(request)
            form = dict(parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True))
            call = replace(call, query=form)
        agreed = call.query.pop("agreed", None)
        # A form that is too long for an address is asked about by POST, too.
        asks = request.method != "POST" or call.query.pop("ask", "") == "1"
        prepare = ACTIONS.get(call.query.get("do", ""))
        if prepare is None:
            raise Refused(404, "the console has no such action")
        action = await prepare(call)
        if not call.may(action.scope, action.name):
            why = "this server is read-only" if call.read_only else "your token does not allow it"
            raise Refused(403, f"{action.title}: {why}")
        back = request.root + HOME + action.back
        changed = agreed is not None and not action.is_agreed(agreed)
        if asks or changed:
            curl = action.curl(call.address, token=self.needs_token)
            shown = {"action": action, "back": back, "curl": curl, "changed": changed}
            fields, status = call.query | dict(action.pinned), 409 if changed else 200
            return self._page(call, "act.html", "", {**shown, "fields": fields}, status)
        reply = await self._made(request, call.grant, action)
        if reply.status >= 300:
            problem = msgspec.json.decode(reply.body)
            raise Refused(reply.status, f"{action.title}: {problem.get('detail', reply.status)}")
        word = "Accepted" if action.is_job else "Done"
        said = urlencode({"said": f"{word}: {action.title}"})
        return _redirect(f"{back}{'&' if '?' in back else '?'}{said}")

    async def _made(self, request: Request, grant: Grant, action: Action) -> Reply:
        """Make an action by its route of the API, which checks, audits and answers."""
        body = b"" if action.body is None else msgspec.json.encode(action.body)
        path, _, query = action.path.partition("?")
        admitted = self._api.admit_as(action.method, path, grant)
        given = request.headers or {}
        headers = {name: one for name, one in given.items() if name in (b"host", b"origin")}
        headers[b"content-type"] = b"application/json"
        asked = Request(action.method, path, query, admitted.action, True, body, headers=headers)
        done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def take(reply: Reply | StreamedReply) -> None:
            if not done.done() and isinstance(reply, Reply):
                done.set_result(reply)

        self._api.handle(asked, take)
        return await done

    def refuse(self, refused: Refused) -> Reply:
        """Return the reply to what is refused, which may not even be a request."""
        return self._api.refuse(refused)

    def count(self, reply: Reply | StreamedReply) -> None:
        """Count a request that is answered."""
        self._api.count(reply)

    async def close(self) -> None:
        """Wait until no page is under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)


def _is_own(path: str) -> bool:
    return path in ("/", HOME) or path.startswith(HOME + "/")


def _redirect(where: str, *headers: bytes) -> Reply:
    line = b"Location: %b\r\n" % quote(where, safe="/?&=%:+,.-_~").encode()
    return Reply(303, b"", _HTML, _SAFE + line + b"".join(headers))


def _cookie(token: str, path: str, age: int | None = None, *, secure: bool = False) -> bytes:
    words = (
        f"{TOKEN_COOKIE.decode()}={quote(token, safe='')}; Path={path}; HttpOnly; SameSite=Strict"
    )
    if secure:
        words += "; Secure"
    if age is not None:
        words += f"; Max-Age={age}"
    return f"Set-Cookie: {words}\r\n".encode()
