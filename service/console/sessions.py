"""Console sessions and forms: cookie authentication, sign-in with an API token, CSRF checks.

The console accepts a form only with the Origin of PUBLIC_BASE_URL and with the CSRF token of the user's session; the token
contains the id of the page's account. Each rejection states its reason to the user and is logged. Cookies, tokens and
secrets are never echoed; an error page shows again only the fields in `ConsoleRoute.text_fields`.

Over https the cookie's name has the prefix `__Host-`, so that no other host of the domain can set it. Over http another host
can set it. So cookies without a valid session are ignored, and with valid sessions of two accounts only sign-in and sign-out
are accepted.

As in the API, failed sign-ins count towards the address's limit of failed authentications. A cookie cannot be guessed, so
signed-in users stay signed in while others guess from the same address. Their requests have the API's limit, but their own
counter.
"""

import base64
import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal
from urllib.parse import urlsplit

import falcon

from runtime.clock import utc_now
from schemas.base.console_session import Session, SessionEndReason, SignInMethod
from schemas.base.errors import Forbidden, RateLimited, Unauthorized
from schemas.base.principal import Ability, TokenPrincipal
from schemas.settings.definitions import Settings
from schemas.url_policy.target_url import DEFAULT_PORTS
from service.console.form_fields import Fields
from service.console.permissions import is_offered
from service.http.form_bodies import read_urlencoded
from service.http.limits.rate_limits import RateLimits
from service.operations.accounts.authority import OperatorAccount
from storage.accounts import sessions, tokens
from storage.db import engine

#: The name of the session cookie over http; over https it also has the prefix.
COOKIE: Final = "riskrelay_session"
#: The name of the cookie of a sign-in in progress.
SIGN_IN_COOKIE: Final = "riskrelay_sign_in"
#: Browsers accept this prefix only over https, without a domain, and for the path /.
COOKIE_PREFIX: Final = "__Host-"
CSRF_FIELD: Final = "csrf"
#: Maximum number of cookies to check. Another path or host of the domain may have set cookies with the same name; browsers
#: keep up to 180 cookies of a site.
_MAX_COOKIES: Final = 200
#: The expiry date that deletes a cookie.
_EXPIRED: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Names under which a browser on the same machine reaches the installation.
_LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")

_log: Final = logging.getLogger(__name__)


class SignInRequired(Unauthorized):
    """You are not signed in. Nothing was changed."""

    def __init__(self, ended: SessionEndReason | None) -> None:
        super().__init__()
        self.ended = ended


class TokenRejected(Unauthorized):
    """This token does not exist, was revoked or has expired."""


@dataclass(frozen=True, slots=True)
class ConsoleUser:
    """A signed-in user; `csrf` is the token that the user's forms contain."""

    session: Session
    csrf: str
    is_operator: bool
    #: Whether the browser also sent a valid session of another account.
    is_ambiguous: bool = False

    @property
    def principal(self) -> TokenPrincipal:
        """The principal to pass to operations and storage."""
        return self.session.principal

    def may(self, path: str) -> bool:
        """Return whether pages show the user a link or form, given its path below the console."""
        return is_offered(path, self.principal, is_operator=self.is_operator)

    @property
    def account_id(self) -> int:
        """The account whose records the user sees."""
        return self.session.principal.account_id


class SessionGate:
    """Authenticates the console's users and checks their forms."""

    def __init__(self, settings: Settings, limits: RateLimits) -> None:
        base = urlsplit(settings.public_base_url)
        self.origin = origin_of(settings.public_base_url)
        self._loopback_origins = _loopback_origins(self.origin)
        #: Whether cookies are sent over https only.
        self.is_secure = base.scheme == "https"
        #: The path prefix that a reverse proxy strips.
        self.root = base.path.rstrip("/")
        # The name contains the path prefix: because of the path /, other installations on the same host get the cookie too.
        suffix = self.root.replace("/", "-")
        self.console_url = f"{settings.public_base_url}/console"
        self._cookie = f"{COOKIE_PREFIX}{COOKIE}{suffix}" if self.is_secure else COOKIE
        self._sign_in_cookie = self._cookie.replace(COOKIE, SIGN_IN_COOKIE)
        self._cookie_path = "/" if self.is_secure else f"{self.root}/console"
        self.limits = limits
        self._operator_account = OperatorAccount(settings)

    def authenticate(self, req: falcon.Request, resp: falcon.Response, *, is_counted: bool = True) -> ConsoleUser:
        """Return the signed-in user. Raises SignInRequired and, if the request `is_counted`, RateLimited."""
        secret, session, is_ambiguous = self._session(req, resp)
        req.context.principal = session.principal
        account_id = session.principal.account_id
        user = ConsoleUser(session, _csrf(secret, account_id), self._operator_account.has_id(account_id), is_ambiguous)
        req.context.user = user
        if is_counted:
            self._spend(req, resp, session.principal)
        return user

    def read_fields(self, req: falcon.Request, read: Callable[[falcon.Request], Fields] | None = None) -> Fields:
        """Return the fields of a form that a console page sent; the browser need not have a session.

        `read` reads a form with a file. Raises Forbidden, PayloadTooLarge, UnsupportedMediaType, ValidationFailed,
        RequestTimeout, and what `read` raises.
        """
        self._require_own_origin(req)
        # A slow client may take minutes to send a form. Database connections are few, so none is held during this time.
        engine.release()
        return (read or read_urlencoded)(req)

    def require_own_form(self, req: falcon.Request, user: ConsoleUser, fields: Fields) -> None:
        """Raise SignInRequired or Forbidden unless the session is still valid and the form contains its CSRF token.

        The session may be revoked, or its permissions changed, while a slow client sends the form, so this updates
        `req.context.user`.
        """
        found = [each for _, each in self._find_sessions(req) if isinstance(each, Session)]
        session = next((each for each in found if each.id == user.session.id), None)
        if session is None:
            req.context.user = None
            self._log_rejection(req, "session_ended_meanwhile")
            raise SignInRequired(None)
        req.context.user = replace(user, session=session)
        csrf = fields.get(CSRF_FIELD, "")
        if hmac.compare_digest(csrf.encode(), user.csrf.encode()):
            return
        account_id, dot, _ = csrf.partition(".")
        if dot and account_id.isdecimal() and account_id != str(user.account_id):
            self._log_rejection(req, "other_account")
            raise Forbidden("This form belongs to another account. Nothing was changed. Open the page again.")
        self._log_rejection(req, "csrf")
        raise Forbidden("This form does not belong to your session. Nothing was changed. Reload the page and try again.")

    def require_one_account(self, req: falcon.Request, user: ConsoleUser) -> None:
        """Raise Forbidden if the browser sent valid sessions of several accounts: an attacker may have set one of them."""
        if user.is_ambiguous:
            self._log_rejection(req, "several_accounts")
            raise Forbidden(
                "Your browser sent sessions of several accounts. Nothing was changed. Sign out, then sign in again."
            )

    def require_unblocked(self, req: falcon.Request) -> None:
        """Raise RateLimited for an address with too many failed sign-ins, even with a valid token."""
        try:
            self.limits.require_unblocked(req)
        except RateLimited:
            self._log_rejection(req, "address_blocked")
            raise

    def sign_in(self, req: falcon.Request, resp: falcon.Response, token: str) -> None:
        """Begin a session for an API token, set its cookie, and end the browser's previous session.

        Raises TokenRejected, Forbidden, RateLimited.
        """
        self.require_unblocked(req)
        principal = tokens.principal_for(token.strip(), utc_now())
        if principal is None:
            self._log_rejection(req, "token_unknown")
            self.limits.count_failure(req)
            raise TokenRejected
        self.limits.require_still_unblocked(req)
        req.context.principal = principal
        self._spend(req, resp, principal)
        if Ability.CONSOLE not in principal.abilities:
            self._log_rejection(req, "token_without_console")
            raise Forbidden(
                "This token lacks the ability console. "
                "Create one that has it: `bin/riskrelay token create --user EMAIL --ability console`."
            )
        self._end_sessions(req)
        self._set_cookie(resp, sessions.begin(principal, req.user_agent or "", utc_now()))

    def begin_for_user(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        user_id: int,
        method: SignInMethod,
        once: str,
        seal_id_token: Callable[[str], bytes] | None = None,
    ) -> None:
        """Begin a session for a user without a token, set its cookie, and end the browser's previous session.

        Raises Conflict for a second use of `once` and for a disabled user, RateLimited.
        """
        self.limits.require_still_unblocked(req)
        secret = sessions.begin_for_user(user_id, method, once, req.user_agent or "", utc_now(), seal_id_token)
        self._end_sessions(req)
        self._set_cookie(resp, secret)

    def count_failure(self, req: falcon.Request, reason: str) -> None:
        """Count and log a failed sign-in for the request's address. Raises RateLimited over the limit."""
        self._log_rejection(req, reason)
        self.limits.count_failure(req)

    def may_request_link(self, req: falcon.Request, email: str) -> bool:
        """Count a request for a sign-in link; return whether the client's network may request one for this email address."""
        is_allowed = self.limits.may_request_link(req, email)
        if not is_allowed:
            self._log_rejection(req, "too_many_links")
        return is_allowed

    def set_sign_in_cookie(self, resp: falcon.Response, kept: str) -> None:
        """Set the cookie of a sign-in that continues at the issuer or in a mailbox, or delete it if `kept` is empty."""
        # Lax, because the browser returns from another site.
        self._set_cookie(resp, kept, self._sign_in_cookie, "Lax")

    def sign_in_cookie(self, req: falcon.Request) -> str:
        """Return the cookie that `set_sign_in_cookie` has set, or ""."""
        return next(iter(req.get_cookie_values(self._sign_in_cookie) or [""]))

    def sign_out(self, req: falcon.Request, resp: falcon.Response) -> None:
        """End every session that the browser sent, and delete the cookie."""
        self._end_sessions(req)
        self._set_cookie(resp, "")

    def has_cookie(self, req: falcon.Request) -> bool:
        """Return whether the request contains a session cookie."""
        return bool(req.get_cookie_values(self._cookie))

    def _session(self, req: falcon.Request, resp: falcon.Response) -> tuple[str, Session, bool]:
        """Return the first valid session with its secret, and whether a session of another account is valid as well."""
        found = self._find_sessions(req)
        valid = [(secret, each) for secret, each in found if isinstance(each, Session)]
        if valid:
            return *valid[0], len({each.principal.account_id for _, each in valid}) > 1
        # The reason of an ended session takes precedence over that of an unknown session.
        reasons = [each for _, each in found if isinstance(each, SessionEndReason)]
        ended = next((each for each in reasons if each is not SessionEndReason.UNKNOWN), reasons[0] if reasons else None)
        if ended is not None:
            self._log_rejection(req, f"session_{ended.value}")
            # Delete the cookie, so that the reason is shown only once.
            self._set_cookie(resp, "")
        raise SignInRequired(ended)

    def _find_sessions(self, req: falcon.Request) -> list[tuple[str, Session | SessionEndReason]]:
        """Return for each session cookie its session, or the reason why there is none, in the order of the cookies."""
        secrets = dict.fromkeys(req.get_cookie_values(self._cookie) or [])
        return sessions.authenticate_cookies(list(secrets)[:_MAX_COOKIES], req.user_agent or "", utc_now())

    def _end_sessions(self, req: falcon.Request) -> None:
        for _, found in self._find_sessions(req):
            if isinstance(found, Session):
                sessions.end(found.id, SessionEndReason.SIGNED_OUT, utc_now(), found.principal.key)

    def _set_cookie(
        self, resp: falcon.Response, secret: str, name: str | None = None, same_site: Literal["Strict", "Lax"] = "Strict"
    ) -> None:
        """Set the session cookie, or the cookie `name`; delete it if `secret` is empty."""
        resp.set_cookie(
            name or self._cookie,
            secret,
            expires=None if secret else _EXPIRED,
            http_only=True,
            same_site=same_site,
            secure=self.is_secure,
            path=self._cookie_path,
        )

    def _spend(self, req: falcon.Request, resp: falcon.Response, principal: TokenPrincipal) -> None:
        # The console does not use the API's counter: a client that polls too often with the user's token must not lock the
        # user out.
        try:
            self.limits.spend(req, resp, f"console:{principal.key}")
        except RateLimited:
            self._log_rejection(req, "too_often")
            raise

    def _require_own_origin(self, req: falcon.Request) -> None:
        # Browsers send Origin with every form, and no page can change it. A client that does not send it is not a browser.
        origin = req.get_header("Origin") or ""
        # Another loopback name is accepted only if the form was sent to that name: then the page came from this server.
        is_loopback = origin in self._loopback_origins and origin == f"http://{req.netloc}"
        if origin != self.origin and not is_loopback:
            self._log_rejection(req, "origin")
            raise Forbidden(
                f"Nothing was changed: this console accepts forms only from {self.origin}, and this form came from another "
                "origin. Open the console at that address, or set PUBLIC_BASE_URL to the address that you use."
            )

    def _log_rejection(self, req: falcon.Request, reason: str) -> None:
        _log.warning("the console rejected a request", extra={"reason": reason, "request_id": req.context.request_id})


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL as browsers send them: in lower case, without the default port."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    has_port = parts.port is not None and parts.port != DEFAULT_PORTS.get(parts.scheme)
    return f"{parts.scheme}://{host}{f':{parts.port}' if has_port else ''}"


def _loopback_origins(origin: str) -> frozenset[str]:
    """Return the origins of all loopback names if `origin` is http and has one of these names; otherwise none."""
    base = urlsplit(origin)
    if base.scheme != "http" or base.hostname not in {name.strip("[]") for name in _LOOPBACK_HOSTS}:
        return frozenset()
    return frozenset(f"http://{name}{f':{base.port}' if base.port else ''}" for name in _LOOPBACK_HOSTS)


def _csrf(secret: str, account_id: int) -> str:
    """Return a session's CSRF token: the account and a keyed hash of it, from which the secret cannot be derived."""
    digest = hmac.digest(secret.encode(), f"forms of account {account_id}".encode(), "sha256")
    return f"{account_id}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
