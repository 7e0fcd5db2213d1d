"""Who comes in: a cookie stands for a session, a form must come from a page of ours, an API token is traded in once.

A form counts only with the Origin that PUBLIC_BASE_URL has and with the token that its session's pages carry. Whoever is
refused is told why, and the log is told too. Nothing of a cookie, a token or a form is ever repeated.

Who guesses tokens is refused as at the API. A cookie cannot be guessed, so who is signed in stays so while others of the
same address guess, and asks as often a minute as a token's user may, under a count of its own.
"""

import base64
import hmac
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import falcon

from runtime.clock import utc_now
from schemas.base.console_session import Ended, Session
from schemas.base.errors import (
    Forbidden,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    Unauthorized,
    UnsupportedMediaType,
    ValidationFailed,
)
from schemas.base.fields import problem
from schemas.base.principal import Ability, TokenPrincipal
from schemas.settings.definitions import DeploymentMode, Settings
from service.http.rate_limits import RateLimits
from service.http.request_pipeline import read_chunk
from storage.accounts import accounts, sessions, tokens
from storage.db import engine

COOKIE: Final = "riskrelay_session"
CSRF_FIELD: Final = "csrf"
#: A form's longest field is a secret; whatever is longer was not typed here.
MAX_FORM_BYTES: Final = 64 * 1024
#: The largest form has five.
MAX_FORM_FIELDS: Final = 50
#: Cookies of our name that are looked up: another path or another host of the domain may have set one beside ours.
_MAX_COOKIES: Final = 4
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
#: What is said of a cookie that a browser is to forget.
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}

_log: Final = logging.getLogger(__name__)


class SignInNeeded(Unauthorized):
    """You are not signed in; nothing was done."""

    def __init__(self, why: Ended | None) -> None:
        super().__init__()
        self.why = why


class TokenRefused(Unauthorized):
    """This token is not known here, was revoked or has expired."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who is signed in; `csrf` is what their forms carry."""

    session: Session
    csrf: str
    is_operator: bool

    @property
    def principal(self) -> TokenPrincipal:
        """Who they are to everything beneath the console."""
        return self.session.principal

    @property
    def account_id(self) -> int:
        """Whose rows they see."""
        return self.session.principal.account_id


class Entrance:
    """Lets persons in, and their forms."""

    def __init__(self, settings: Settings, limits: RateLimits) -> None:
        base = urlsplit(settings.public_base_url)
        self.origin = origin_of(settings.public_base_url)
        self._is_secure = base.scheme == "https"
        #: What a proxy puts before every path, and takes off again.
        self.root = base.path.rstrip("/")
        self._cookie_path = f"{self.root}/console"
        self._limits = limits
        self._operator_account_id = settings.operator_account_id
        self._has_first_for_operator = settings.deployment_mode is not DeploymentMode.CLOUD

    def visitor(self, req: falcon.Request, resp: falcon.Response, *, is_counted: bool = True) -> Visitor:
        """Return who is signed in. Raises SignInNeeded and, where it `is_counted`, RateLimited."""
        secret, session = self._session(req, resp)
        req.context.principal = session.principal
        req.context.visitor = visitor = Visitor(session, _csrf(secret), self._is_operator(session.principal.account_id))
        if is_counted:
            self._spend(req, resp, session.principal)
        return visitor

    def require_operator(self, visitor: Visitor) -> None:
        """Raises NotFound for whoever may not see the installation itself: to them it is not there."""
        if not visitor.is_operator:
            raise NotFound

    def form(self, req: falcon.Request, visitor: Visitor | None) -> Mapping[str, str]:
        """Return the fields of a form that came from a page of ours, a signed-in visitor's from one of their session.

        What the visitor may do by now stands in `req.context.visitor` from then on.
        Raises SignInNeeded, Forbidden, PayloadTooLarge, UnsupportedMediaType, ValidationFailed, TooSlow.
        """
        self._require_own_origin(req)
        # A form may take its sender minutes; connections are few, and nobody holds one meanwhile.
        engine.release()
        fields = _fields(req)
        if visitor is not None:
            self._require_still_signed_in(req, visitor)
        if visitor is not None and not hmac.compare_digest(fields.get(CSRF_FIELD, "").encode(), visitor.csrf.encode()):
            self._refused(req, "csrf")
            raise Forbidden("This form is not of your session; nothing was done. Load the page again and repeat it.")
        return fields

    def require_unblocked(self, req: falcon.Request) -> None:
        """Raises RateLimited for an address that tried too many wrong tokens, whatever it brings now."""
        try:
            self._limits.require_unblocked(req)
        except RateLimited:
            self._refused(req, "address_blocked")
            raise

    def sign_in(self, req: falcon.Request, resp: falcon.Response, text: str) -> None:
        """Trade an API token in for a fresh session's cookie; the session that the browser had ends.

        Raises TokenRefused, Forbidden, RateLimited.
        """
        self.require_unblocked(req)
        principal = tokens.principal_for(text.strip(), utc_now())
        if principal is None:
            self._refused(req, "token_unknown")
            self._limits.count_failure(req)
            raise TokenRefused
        self._limits.require_still_unblocked(req)
        req.context.principal = principal
        self._spend(req, resp, principal)
        if Ability.CONSOLE not in principal.abilities:
            self._refused(req, "token_without_console")
            raise Forbidden(
                "This token lacks the ability console; `bin/riskrelay token create --user EMAIL --ability console` has it."
            )
        for _, found in self._found(req):
            if isinstance(found, Session):
                sessions.end(found.id, Ended.SIGNED_OUT, utc_now(), found.principal.key)
        self._set_cookie(resp, sessions.begin(principal, _browser(req), utc_now()))

    def sign_out(self, resp: falcon.Response, visitor: Visitor) -> None:
        """End the visitor's session here and in the browser."""
        sessions.end(visitor.session.id, Ended.SIGNED_OUT, utc_now(), visitor.principal.key)
        self._set_cookie(resp, "")

    def has_cookie(self, req: falcon.Request) -> bool:
        """Tell whether the browser brought a cookie of ours."""
        return bool(req.get_cookie_values(COOKIE))

    def _session(self, req: falcon.Request, resp: falcon.Response) -> tuple[str, Session]:
        over: Ended | None = None
        for secret, found in self._found(req):
            if isinstance(found, Session):
                return secret, found
            over = over if over not in {None, Ended.UNKNOWN} else found
        if over is not None:
            self._refused(req, f"session_{over.value}")
            # The reason is told once; what follows is nobody's any more.
            self._set_cookie(resp, "")
        raise SignInNeeded(over)

    def _require_still_signed_in(self, req: falcon.Request, visitor: Visitor) -> None:
        # Whoever was thrown out while their form was on its way does nothing with it any more, however slowly it came; who
        # is still there may do what they may by now.
        found = (each for _, each in self._found(req) if isinstance(each, Session))
        session = next((each for each in found if each.id == visitor.session.id), None)
        if session is None:
            req.context.visitor = None
            self._refused(req, "session_ended_meanwhile")
            raise SignInNeeded(None)
        req.context.visitor = replace(visitor, session=session)

    def _found(self, req: falcon.Request) -> Iterator[tuple[str, Session | Ended]]:
        """Yield what each cookie of our name stands for."""
        for secret in (req.get_cookie_values(COOKIE) or [])[:_MAX_COOKIES]:
            yield secret, sessions.find(secret, _browser(req), utc_now())

    def _set_cookie(self, resp: falcon.Response, secret: str) -> None:
        """Give the browser a session's cookie, or take it away where `secret` is empty."""
        resp.set_cookie(
            COOKIE,
            secret,
            expires=None if secret else _LONG_AGO,
            http_only=True,
            same_site="Strict",
            secure=self._is_secure,
            path=self._cookie_path,
        )

    def _spend(self, req: falcon.Request, resp: falcon.Response, principal: TokenPrincipal) -> None:
        # Not the key of the API: a client that polls too often with the same user's token locks nobody out.
        try:
            self._limits.spend(req, resp, f"console:{principal.key}")
        except RateLimited:
            self._refused(req, "too_often")
            raise

    def _require_own_origin(self, req: falcon.Request) -> None:
        # Browsers send it with every form, and no page can change it; a missing one is no browser's.
        if origin_of(req.get_header("Origin") or "") != self.origin:
            self._refused(req, "origin")
            raise Forbidden(
                f"Nothing was done: this console takes forms from {self.origin} alone, and this one came from elsewhere. "
                "Open it under that address, or set PUBLIC_BASE_URL to the one that you use."
            )

    def _is_operator(self, account_id: int) -> bool:
        if self._operator_account_id is not None:
            return account_id == self._operator_account_id
        return self._has_first_for_operator and account_id == accounts.first_id()

    def _refused(self, req: falcon.Request, reason: str) -> None:
        _log.warning("the console refused a request", extra={"reason": reason, "request_id": req.context.request_id})


def origin_of(url: str) -> str:
    """Return scheme, host and port as a browser writes them: in small letters, without a port that goes without saying.

    Nothing for what is no URL of a host, such as `null`.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    if not parts.hostname or parts.username is not None:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    is_told = port is not None and port != _DEFAULT_PORTS.get(parts.scheme)
    return f"{parts.scheme}://{host}{f':{port}' if is_told else ''}"


def _csrf(secret: str) -> str:
    """Return what a session's forms carry: it cannot be guessed without the cookie, and the cookie not from it."""
    return base64.urlsafe_b64encode(hmac.digest(secret.encode(), b"forms", "sha256")).decode().rstrip("=")


def _browser(req: falcon.Request) -> str:
    return req.user_agent or ""


def _fields(req: falcon.Request) -> dict[str, str]:
    """Read a form: text in UTF-8, each field once."""
    if (req.content_type or "").partition(";")[0].strip().lower() != _FORM_TYPE:
        raise UnsupportedMediaType("Forms are application/x-www-form-urlencoded.")
    body = _body(req)
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FORM_FIELDS, strict_parsing=bool(body)
        )
    except ValueError:
        raise _malformed() from None
    fields = dict(pairs)
    if len(fields) < len(pairs) or any("\0" in text for pair in pairs for text in pair):
        raise _malformed()
    return fields


def _body(req: falcon.Request) -> bytes:
    """Read a form's bytes under the cap; one without a length is chunked, which no browser does."""
    length = req.content_length or 0
    if length > MAX_FORM_BYTES:
        raise PayloadTooLarge
    body = b""
    while len(body) < length and (piece := read_chunk(req.bounded_stream, length - len(body))):
        body += piece
    if len(body) < length:
        raise _malformed()
    return body


def _malformed() -> ValidationFailed:
    return ValidationFailed(problem("", "malformed_form"))
