"""The common parts of console pages: menu, content security policy, error pages, and base classes for pages and forms.

Pages load nothing from other hosts and contain no inline script or style. Templates escape all values, because most values
come from third parties.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

import falcon
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from runtime.wake_up_queue import WakeUpQueue
from schemas.base.console_session import SessionEndReason
from schemas.base.errors import FieldProblem, RiskRelayError, ValidationFailed
from schemas.settings.definitions import RouteFamily, Settings
from schemas.version import VERSION
from service.api.health import ReadinessChecks
from service.console import wording
from service.console.form_fields import Fields, Problems, by_path, safe_next, whole_number
from service.console.navigation import Navigation
from service.console.openid_connect import OpenIdConnect
from service.console.permissions import require_permission
from service.console.sessions import ConsoleUser, SessionGate, SignInRequired
from service.http.limits.rate_limits import RateLimits
from service.http.paging import PageRequest, next_page
from service.operations.wiring import Operations
from storage.db import identifiers
from storage.secrets.vault import Vault

CONSOLE: Final = "/console"
SIGN_IN: Final = f"{CONSOLE}/sign-in"

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
#: With the API's value `no-referrer`, browsers would send `Origin: null` with our own forms.
REFERRER_POLICY: Final = "same-origin"

#: The value of Sec-Fetch-Site for a link on another site.
_CROSS_SITE: Final = "cross-site"
#: A path of fixed words and well-formed ids, which can be repeated safely in a response.
_SAFE_PATH: Final = re.compile(r"(/[a-z-]+|/[a-z]{3}_[0-9A-HJKMNP-TV-Z]{26})+")

_NOT_FOUND: Final = 404
_METHOD_NOT_ALLOWED: Final = 405
_UNPROCESSABLE: Final = 422
_SERVER_ERROR: Final = 500

_TEMPLATES: Final = Path(__file__).parent / "templates"


class Redirect(NamedTuple):
    """The page to show after a form, relative to the console, and the key of its notice.

    If the notice offers to undo a decision, `undo` is the id of the export, a dot, and the export's version after the
    decision.
    """

    path: str
    done: str
    undo: str | None = None


class RefusedForm(NamedTuple):
    """A refused form that a page shows again: the verb in its path, the entered texts, and its problems by path."""

    verb: str
    typed: Mapping[str, str]
    problems: Mapping[str, FieldProblem]


#: The variables of a template; a template's name with its variables.
Content = Mapping[str, Any]
Shown = tuple[str, Content]


class PageLayout:
    """Renders pages, redirects and errors, and contains the dependencies that pages and forms share."""

    def __init__(
        self, settings: Settings, limits: RateLimits, vault: Vault, wake_ups: WakeUpQueue, operations: Operations
    ) -> None:
        self.settings = settings
        self.vault = vault
        self.wake_ups = wake_ups
        self.operations = operations
        self.checks = ReadinessChecks(wake_ups, vault, settings.data_dir)
        self.navigation = Navigation(self.checks)
        self.gate = gate = SessionGate(settings, limits)
        self.openid = OpenIdConnect(settings, vault, gate.console_url) if settings.oidc_issuer else None
        self._base = gate.root + CONSOLE

    def render(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        template: str,
        content: Mapping[str, Any],
        user: ConsoleUser | None = None,
    ) -> None:
        """Respond with a template filled with `content`; the caller sets the status."""
        resp.set_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        resp.set_header("Referrer-Policy", REFERRER_POLICY)
        resp.content_type = falcon.MEDIA_HTML
        done = req.get_param("done") or ""
        resp.data = (
            templates()
            .get_template(template)
            .render(
                base=self._base,
                root=self.gate.root,
                current=req.path.removeprefix(CONSOLE),
                # An error page must not query the database, whose outage may be the reason for the error.
                menu=self.navigation.menu(user, may_query=resp.status_code < _SERVER_ERROR) if user else None,
                user=user,
                notice=wording.NOTICES.get(done),
                is_failure=done in wording.FAILURE_NOTICES,
                undo=_undo(req, user) if done in wording.UNDOABLE else None,
                version=VERSION,
                **{"refused": None, **content},
            )
            .encode()
        )

    def redirect(self, resp: falcon.Response, path: str, **query: str) -> None:
        """Redirect to a page with 303; `path` is relative to the console."""
        resp.status = falcon.HTTP_303
        begin = "&" if "?" in path else "?"
        resp.set_header("Location", self._base + path + (f"{begin}{urlencode(query)}" if query else ""))

    def address(self, path: str) -> str:
        """Return the address of a page for the browser; `path` is relative to the console."""
        return self._base + path

    def render_redirect_page(
        self, req: falcon.Request, resp: falcon.Response, address: str, reason: str = "You are being redirected."
    ) -> None:
        """Respond with a page that opens another address automatically, or reloads itself if `address` is empty."""
        refresh = f"0; url={address}" if address else "0"
        self.render(req, resp, "continue.html", {"refresh": refresh, "address": address, "reason": reason})

    def render_error(self, req: falcon.Request, resp: falcon.Response, error: RiskRelayError) -> None:
        """Respond with an error page, or redirect a page view without a session to the sign-in; `resp` has the status."""
        if isinstance(error, SignInRequired) and req.method in {"GET", "HEAD"}:
            self._redirect_to_sign_in(req, resp, error.ended)
            return
        content = {
            "error": error,
            "status": resp.status_code,
            "back": _parent(req, resp),
            "then": req.context.get("then", ""),
            "typed": req.context.get("typed", {}),
            "request_id": req.context.request_id,
        }
        self.render(req, resp, "error.html", content, req.context.get("user"))

    def _redirect_to_sign_in(self, req: falcon.Request, resp: falcon.Response, ended: SessionEndReason | None) -> None:
        if req.get_header("Sec-Fetch-Site") == _CROSS_SITE and not self.gate.has_cookie(req):
            # Browsers omit the SameSite cookie after a link on another site. This page reloads itself; then browsers send
            # the cookie.
            resp.status = falcon.HTTP_200
            self.render_redirect_page(req, resp, "", "You followed a link from another site.")
            return
        path = safe_next(req.path.removeprefix(CONSOLE) + (f"?{req.query_string}" if req.query_string else ""))
        self.redirect(resp, "/sign-in", **({"next": path} if path else {}), **({"why": ended.value} if ended else {}))


class ConsoleRoute:
    """A page or a form; subclasses set `path`."""

    path: str
    family = RouteFamily.CONSOLE
    #: The labels of the text fields that an error page shows again, by field name; never fields with secrets.
    text_fields: ClassVar[Mapping[str, str]] = {}

    def __init__(self, layout: PageLayout) -> None:
        self._layout = layout
        self._settings = layout.settings
        self._vault = layout.vault
        self._operations = layout.operations

    def _submitted(self, req: falcon.Request, resp: falcon.Response, ids: Mapping[str, str]) -> tuple[ConsoleUser, Fields]:
        """Return the user who sent a form, and the form's fields, after all checks."""
        gate = self._layout.gate
        try:
            user = gate.authenticate(req, resp)
        except SignInRequired:
            # The session ended while the user filled in the form.
            with suppress(RiskRelayError):
                self._store_for_error(req, gate.read_fields(req))
            raise
        form = self.read(req)
        self._store_for_error(req, form)
        gate.require_own_form(req, user, form)
        gate.require_one_account(req, user)
        # The user with current permissions, which may have changed while the form was sent.
        user = req.context.user
        require_permission(self.path.removeprefix(CONSOLE), user.principal, ids, is_operator=user.is_operator)
        return user, form

    def read(self, req: falcon.Request) -> Fields:
        """Read and return the fields of the submitted form."""
        return self._layout.gate.read_fields(req)

    def _store_for_error(self, req: falcon.Request, form: Fields) -> None:
        """Store the entered texts, and the list to which the page leads back, for an error page."""
        req.context.typed = self.typed(form)
        req.context.then = safe_next(form.get("then", ""))

    def typed(self, form: Fields) -> dict[str, str]:
        """Return the texts of a form by label, for an error page. That page may have the only copy of them."""
        return {label: form[name] for name, label in self.text_fields.items() if form.get(name, "").strip()}


class RedirectRoute(ConsoleRoute):
    """Redirects from one path to another, both relative to the console."""

    def __init__(self, path: str, to: str, layout: PageLayout) -> None:
        super().__init__(layout)
        self.path = CONSOLE + path
        self._to = to

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Redirect to the other path."""
        self._layout.redirect(resp, self._to)

    on_head = on_get


class ConsolePage(ConsoleRoute):
    """A page; subclasses set `template` and return the template's variables."""

    template: str

    def on_get(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Render the page."""
        user = self._reader(req, resp, ids)
        _drop_empty_params(req)
        self._layout.render(req, resp, self.template, self.content(req, user, **ids), user)

    def on_head(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Respond like GET; the server omits the body."""
        self.on_get(req, resp, **ids)

    def content(self, req: falcon.Request, user: ConsoleUser, **ids: str) -> Mapping[str, Any]:
        """Return the template's variables."""
        raise NotImplementedError

    def _reader(self, req: falcon.Request, resp: falcon.Response, ids: Mapping[str, str]) -> ConsoleUser:
        """Return the signed-in user if the user may see the page. Raises SignInRequired, Forbidden, NotFound."""
        user = self._layout.gate.authenticate(req, resp)
        require_permission(self.path.removeprefix(CONSOLE), user.principal, ids, is_operator=user.is_operator)
        return user


class Action(ConsoleRoute):
    """A form; subclasses process the submitted fields and return the page to show."""

    def on_post(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Check and process the form."""
        user, form = self._submitted(req, resp, ids)
        try:
            to = self.act(user, form, **ids)
        except ValidationFailed as failed:
            template, content = self.again(req, user, form, failed, **ids)
            resp.status = falcon.HTTP_422
            self._layout.render(req, resp, template, content, user)
            return
        self._layout.navigation.clear_counts(user.account_id)
        self._layout.redirect(resp, to.path, done=to.done, **({} if to.undo is None else {"undo": to.undo}))

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Process the form. Raises ValidationFailed."""
        raise NotImplementedError

    def again(self, req: falcon.Request, user: ConsoleUser, form: Fields, failed: ValidationFailed, **ids: str) -> Shown:
        """Return the template and the variables of a page that shows a refused form again; without one, raise `failed`."""
        raise failed


class PageAction(Action):
    """A form on a page with several forms; if it is refused, the page shows it again.

    The page then shows the entered texts and the reasons.
    """

    page: type[ConsolePage]
    #: The fields that a refused form shows again: all except secrets.
    fields: ClassVar[tuple[str, ...]] = ()

    def again(self, req: falcon.Request, user: ConsoleUser, form: Fields, failed: ValidationFailed, **ids: str) -> Shown:
        """Return the page, with the variables that differ for the refused form."""
        page = self.page(self._layout)
        return page.template, {**page.content(req, user, **ids), **self.refused(form, failed.problems, **ids)}

    def refused(self, form: Fields, problems: Problems, **_ids: str) -> Mapping[str, Any]:
        """Return the page's variables for a refused form."""
        typed = {name: form[name] for name in self.fields if name in form}
        return {"refused": RefusedForm(self.path.rpartition("/")[2], typed, by_path(problems))}


class FormPage(ConsolePage, Action):
    """A page with one form; a refused form is shown again with the entered texts and the reasons."""

    def content(self, req: falcon.Request, user: ConsoleUser, **ids: str) -> Mapping[str, Any]:
        """Return the page's variables with a new form."""
        return self.form(req, user, None, (), **ids)

    def again(self, req: falcon.Request, user: ConsoleUser, form: Fields, failed: ValidationFailed, **ids: str) -> Shown:
        """Return the page with the refused form."""
        return self.template, self.form(req, user, form, failed.problems, **ids)

    def form(self, req: falcon.Request, user: ConsoleUser, typed: Fields | None, problems: Problems, **ids: str) -> Content:
        """Return the template's variables; `typed` is a refused form, which has `problems`, or None for a new form."""
        raise NotImplementedError


def list_content(page: PageRequest, found: Sequence[Any], ids: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the variables of `list.html`; `found` contains up to `page.fetch_limit` records, and `ids` their ids."""
    return {
        "shown": found[: page.limit],
        "filters": page.filters,
        "next": next_page(page, [record.id for record in found] if ids is None else ids),
        "is_first": page.before is None,
    }


@cache
def templates() -> Environment:
    """Return the template environment; each template is compiled once per process, at its first use."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(wording.FILTERS)
    return environment


def _undo(req: falcon.Request, user: ConsoleUser | None) -> dict[str, str] | None:
    """Return the form that undoes the decision in the parameter `undo`; None without one, or if the user may not undo it.

    Its path, and the page to show next, which opens the ticket, are relative. If the export no longer has the `version` that
    it had after the decision, nothing is undone.
    """
    export_id, _, version = (req.get_param("undo") or "").partition(".")
    path, page = f"/exports/{export_id}/restore", req.path.removeprefix(CONSOLE)
    is_named = identifiers.is_id(identifiers.EXPORT, export_id) and whole_number(version)
    if user is None or not is_named or not user.may(path):
        return None
    if page != f"/exports/{export_id}":
        others = [(name, text) for name, text in parse_qsl(req.query_string) if name not in {"done", "undo", "export"}]
        page = f"{page}?{urlencode([*others, ('export', export_id)], safe=',')}"
    return {"path": path, "then": page, "version": version}


def _drop_empty_params(req: falcon.Request) -> None:
    """Remove empty parameters: a filter form sends all of its fields, and a field that is set to all is empty."""
    params: Any = req.params
    for name in [name for name, text in params.items() if not text]:
        del params[name]


def _parent(req: falcon.Request, resp: falcon.Response) -> str:
    """Return the page to which an error page leads back, relative to the console; "" if there is none.

    For a rejected form this is the form's page, because a form's path is the page's path plus a verb. Browsers may open the
    form's path without sending the form, for example in a duplicated tab. For a page with an invalid filter it is the page
    without filters. There is none for a form of a record that was not found.
    """
    page = req.path.removeprefix(CONSOLE)
    if req.method == "GET" and req.query_string and resp.status_code == _UNPROCESSABLE:
        return page if _SAFE_PATH.fullmatch(page) else ""
    parent = page.rpartition("/")[0]
    is_form = resp.status_code == _METHOD_NOT_ALLOWED or (req.method == "POST" and resp.status_code != _NOT_FOUND)
    return parent if is_form and _SAFE_PATH.fullmatch(parent) else ""
