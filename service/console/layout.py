"""What every page of the console has: the menu, the policy that it is shown under, and its errors as pages.

A page loads nothing from elsewhere and runs no script and no style that stands inside it. Whatever is filled into a template
is escaped: nearly all of it was sent by strangers.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import falcon
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from runtime.clock import utc_now
from schemas.base.console_session import Ended
from schemas.base.errors import RiskRelayError
from schemas.version import VERSION
from service.console import wording
from service.console.sessions import Entrance, SignInNeeded, Visitor

CONSOLE: Final = "/console"
SIGN_IN: Final = f"{CONSOLE}/sign-in"

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
#: `no-referrer`, as the API has it, would have browsers send `Origin: null` with our own forms.
REFERRER_POLICY: Final = "same-origin"

#: What a browser says of a request that another site's page led to; of one that our own page leads to it says otherwise.
_FROM_ELSEWHERE: Final = "cross-site"
#: A page's path beneath the console, as our own links have it, and whatever filters it was asked for.
_A_PAGE: Final = re.compile(r"(/[A-Za-z0-9_-]+)+(\?[!-\[\]-~]*)?")
#: A path of a page that says nothing but our own words and ids in their form: it may stand in an answer.
_OUR_WORDS: Final = re.compile(r"(/[a-z-]+|/[a-z]{3}_[0-9A-HJKMNP-TV-Z]{26})+")
#: Longer than any link of ours, shorter than what a server takes for a line.
_LONGEST_NEXT: Final = 1000

_TEMPLATES: Final = Path(__file__).parent / "templates"


class Entry(NamedTuple):
    """A line of the menu; `path` stands beneath the console."""

    name: str
    path: str
    is_operators: bool = False


MENU: Final = (
    Entry("Overview", ""),
    Entry("Exports", "/exports"),
    Entry("Targets", "/targets"),
    Entry("Findings", "/findings"),
    Entry("Integrations", "/integrations", is_operators=True),
    Entry("Compliance", "/compliance", is_operators=True),
    Entry("Audit", "/audit", is_operators=True),
    Entry("Queue and workers", "/queue", is_operators=True),
    Entry("Settings", "/settings", is_operators=True),
)


class Frame:
    """Shows pages to whoever is signed in, and sends the others to the door."""

    def __init__(self, entrance: Entrance) -> None:
        self.entrance = entrance
        self._base = entrance.root + CONSOLE

    def show(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        template: str,
        content: Mapping[str, Any],
        visitor: Visitor | None = None,
    ) -> None:
        """Answer with a template, filled with `content`; the status is the caller's."""
        resp.set_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        resp.set_header("Referrer-Policy", REFERRER_POLICY)
        resp.content_type = falcon.MEDIA_HTML
        here, done = req.path.removeprefix(CONSOLE), req.get_param("done") or ""
        resp.data = (
            templates()
            .get_template(template)
            .render(
                base=self._base,
                root=self.entrance.root,
                current=here,
                menu=[entry for entry in MENU if not entry.is_operators or (visitor and visitor.is_operator)],
                visitor=visitor,
                now=utc_now(),
                notice=wording.NOTICES.get(done),
                is_bad_news=done in wording.BAD_NEWS,
                version=VERSION,
                **content,
            )
            .encode()
        )

    def go(self, resp: falcon.Response, path: str, **query: str) -> None:
        """Answer a form: what was asked for is done, and is looked at under `path` beneath the console."""
        resp.status = falcon.HTTP_303
        resp.set_header("Location", self._base + path + (f"?{urlencode(query)}" if query else ""))

    def show_error(self, req: falcon.Request, resp: falcon.Response, error: RiskRelayError) -> None:
        """Answer with an error as a page; `resp` has its status. Who only looks is sent to sign in."""
        if isinstance(error, SignInNeeded) and req.method in {"GET", "HEAD"}:
            self._let_sign_in(req, resp, error.why)
            return
        content = {"error": error, "status": resp.status_code, "back": _above(req), "request_id": req.context.request_id}
        self.show(req, resp, "error.html", content, req.context.get("visitor"))

    def _let_sign_in(self, req: falcon.Request, resp: falcon.Response, why: Ended | None) -> None:
        if req.get_header("Sec-Fetch-Site") == _FROM_ELSEWHERE and not self.entrance.has_cookie(req):
            # Of a link on another site's page browsers leave the cookie out; a page of ours that loads itself brings it.
            resp.status = falcon.HTTP_200
            self.show(req, resp, "arrival.html", {})
            return
        there = fit_next(req.path.removeprefix(CONSOLE) + (f"?{req.query_string}" if req.query_string else ""))
        asked = {**({"next": there} if there else {}), **({"why": why.value} if why else {})}
        resp.status = falcon.HTTP_303
        resp.set_header("Location", self.entrance.root + SIGN_IN + (f"?{urlencode(asked)}" if asked else ""))


class Page:
    """A page that is looked at: says its `path` and its `template`, and returns what to fill it with."""

    path: str
    template: str
    is_operators = False

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def on_get(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Show it to whoever may see it."""
        visitor = self._frame.entrance.visitor(req, resp)
        if self.is_operators:
            self._frame.entrance.require_operator(visitor)
        _forget_empty(req)
        self._frame.show(req, resp, self.template, self.content(req, visitor, **ids), visitor)

    on_head = on_get

    def content(self, req: falcon.Request, visitor: Visitor, **ids: str) -> Mapping[str, Any]:
        """Return what the template is filled with."""
        raise NotImplementedError


class Action:
    """A form that does something, and then leads to a page."""

    path: str

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def on_post(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Do it for a visitor whose form is a form of ours."""
        form = self._frame.entrance.form(req, self._frame.entrance.visitor(req, resp))
        self.act(req, resp, req.context.visitor, form, **ids)

    def act(self, req: falcon.Request, resp: falcon.Response, visitor: Visitor, form: Mapping[str, str], **ids: str) -> None:
        """Do it, and say where to go."""
        raise NotImplementedError


def fit_next(there: str) -> str:
    """Return where a person was going where it is a page beneath the console, else nothing, which is the overview."""
    return there if len(there) <= _LONGEST_NEXT and _A_PAGE.fullmatch(there) else ""


@cache
def templates() -> Environment:
    """Return the templates; each is compiled once a process, when it is first shown."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(wording.FILTERS)
    environment.filters["segment"] = lambda text: quote(str(text), safe="")
    return environment


def _forget_empty(req: falcon.Request) -> None:
    """Forget parameters that say nothing: a form of filters sends each of its fields, also those that are left at all."""
    params: Any = req.params
    for name in [name for name, text in params.items() if not text]:
        del params[name]


def _above(req: falcon.Request) -> str:
    """Return the page that a refused form belongs to, beneath the console; a form's path is its page's and a verb."""
    above = req.path.removeprefix(CONSOLE).rpartition("/")[0]
    return above if req.method == "POST" and _OUR_WORDS.fullmatch(above) else ""
