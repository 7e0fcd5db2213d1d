"""An installation for tests of the API by its OpenAPI document: every route enabled, a user with all rights, existing ids.

This process serves it over real sockets. It also completes pings and validations, so that no request waits for a worker.
"""

import io
import re
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from falcon.inspect import inspect_routes

from runtime.clock import utc_now
from schemas.accounts.forms import MAX_ROW_ID
from schemas.base.fields import MAX_ID
from schemas.base.principal import ABILITIES, TokenKind
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm
from schemas.targets.pings import PingResult
from schemas.targets.validations import Validation
from schemas.triage.approval_rules import RuleAction, RuleActionType
from service.app import App, create_app
from storage.accounts import accounts, audit_chain, grants, projects, sessions, tokens
from storage.db.engine import rows
from storage.exports import recoveries
from storage.targets import pings, validations
from tests.support.factories import (
    SCANNER_SECRET,
    Customer,
    issue,
    make_bulk_job,
    make_colleague,
    make_customer,
    make_exports,
    make_failed,
    make_handoff,
    make_platform_token,
    make_rule,
    make_settings,
    make_target,
    postback,
    record_postback,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import is_of_the_console
from tests.support.http.storefront import CLOUD, EMAIL_SECRET, signature
from tests.support.worker.receipts import deliver

HOST: Final = "tracker.example.com"
#: A placeholder for a signature: the application replaces it by the signature of the body.
SIGN_IT: Final = "to-be-signed"
_SIGNATURE: Final = "HTTP_X_PLATFORM_HMAC_SHA256"
_ID: Final = re.compile("(blk|exp|fnd|hof|rec|rul|ses|tgt)_[0-9A-HJKMNP-TV-Z]{26}")
#: The prefix or kind of the id for each parameter of a path.
_KINDS: Final = {
    "export_id": "exp",
    "target_id": "tgt",
    "recovery_id": "rec",
    "job_id": "blk",
    "rule_id": "rul",
    "session_id": "ses",
    "handoff_id": "hof",
    "finding_id": "fnd",
    **{name: name for name in ("account_id", "user_id", "grant_id", "token_id", "scan_run_id")},
}
#: Further accounts, so that the ids 1 and 2 (the minimum) and 7 (the example) are not the caller's.
_DECOYS: Final = 8
_LABELLING: Final = RuleAction(RuleActionType.LABEL, labels=("later",))
#: Actions that have their own target, because each can make its target unusable for the others.
_VERBS: Final = ("pause", "ping", "disable")


class DescribedApi:
    """An application with a caller and existing records; `changes` are settings."""

    def __init__(self, folder: Path, changes: Mapping[str, str]) -> None:
        # The smallest ids and those in examples belong to other accounts, so that no request removes the caller's rights.
        for _ in range(_DECOYS):
            make_customer()
        self.customer: Customer = make_customer()
        self._platform_token = make_platform_token(self.customer)
        # The target of every approval. No path has its id, so that no request pauses or deletes it.
        target = make_target(self.customer)
        self._target_id = target.id
        delivered = deliver(self.customer, target_id=target.id)
        audit_chain.extend_to_end()
        # A retry needs a failed export, a split an export with several findings, a receipt a delivered export.
        self._needed = {
            "retry": make_failed(self.customer, target.id, 40),
            "split": self._groups(40),
            "receipt": [delivered],
        }
        self._token = tokens.create(self.customer.email, TokenKind.API, utc_now(), ABILITIES[TokenKind.API])[1]
        self._ids = {
            "exp": make_exports(self.customer, 40),
            "tgt": [make_target(self.customer).id for _ in range(12)],
            "rec": self._recoveries(40),
            "blk": [make_bulk_job(self.customer)],
            "rul": [make_rule(self.customer, _LABELLING).id for _ in range(40)],
            "ses": self._sessions(),
            "hof": [make_handoff(self.customer).id],
            "fnd": [row[0] for row in rows("SELECT id FROM findings ORDER BY id")],
        }
        self._manage()
        self._turned = {verb: make_target(self.customer).id for verb in _VERBS}
        own = {"DEFAULT_PROJECT_ID": str(self.customer.project_id), "OPERATOR_ACCOUNT_ID": str(self.customer.account_id)}
        settings = make_settings(folder, {**CLOUD, **own, **changes})
        resolver = FakeResolver({HOST: ["93.184.215.14"]})
        app = create_app(settings, FakeWakeUpQueue(_be_a_worker), resolver)
        self.operations = {
            f"{method.method} {route.path}"
            for route in inspect_routes(app)
            for method in route.methods
            if not (method.internal or method.method == "HEAD" or is_of_the_console(route.path))
        }
        self._app = _Signing(app)

    def _manage(self) -> None:
        """Store records for the administration routes, and set `_kept` to the records that the caller needs."""
        managed = [make_colleague(self.customer) for _ in range(40)]
        for each in managed[1:]:
            accounts.grant_project(each.email, self.customer.project_id, utc_now())
            projects.add_scan_run(self.customer.project_id, utc_now())
        own = f"SELECT id FROM tokens WHERE user_id = {self.customer.user_id}"  # noqa: S608 - a number
        self._kept = {
            "account_id": {self.customer.account_id},
            "user_id": {self.customer.user_id},
            "token_id": {row[0] for row in rows(own)},
        }
        self._ids |= {
            "account_id": [str(make_customer().account_id) for _ in range(2)],
            "user_id": [str(each.user_id) for each in managed[1:]],
            "grant_id": [str(each.id) for each in grants.list_all() if each.user in {one.email for one in managed}],
            "token_id": [str(each.id) for each in tokens.list_page() if each.id not in self._kept["token_id"]],
            "scan_run_id": [str(row[0]) for row in rows("SELECT id FROM scan_runs ORDER BY id")],
        }
        #: The user whose id is in bodies. No path has it, so that no request removes this user.
        self._user_id = managed[0].user_id
        self._kept["user_id"].add(self._user_id)

    def _groups(self, count: int) -> list[str]:
        """Store groups of two findings each."""
        project_id, now = self.customer.project_id, utc_now()
        projects.set_ticket_grouping(project_id, None, TicketGrouping.RULE, now, "test")
        places: list[Mapping[str, Any]] = [
            issue(f"group-{number}", location=place) for number in range(count) for place in ("main", "nav")
        ]
        groups = record_postback(PostbackForm().read(postback(1, places)), project_id, now).ticket_exports
        projects.set_ticket_grouping(project_id, None, TicketGrouping.FINDING, now, "test")
        return list(groups)

    def _recoveries(self, count: int) -> list[str]:
        """Start recoveries, each with its own target, because a target can have only one at a time."""
        now = utc_now()
        return [recoveries.begin(make_target(self.customer).id, now, now, "user:test").id for _ in range(count)]

    def _sessions(self) -> list[str]:
        """Start a console session; return the ids of all sessions."""
        principal = tokens.principal_for(self._token, utc_now())
        assert principal is not None
        sessions.begin(principal, "a browser", utc_now())
        return [each.id for each in sessions.list_live(utc_now(), 1, account_id=self.customer.account_id)]

    @property
    def credentials(self) -> dict[str, dict[str, str]]:
        """The credentials for each security scheme of the document."""
        return {
            "apiToken": {"bearer": self._token},
            "platformToken": {"bearer": self._platform_token},
            "scannerSecret": {"api_key": SCANNER_SECRET},
            "emailSecret": {"api_key": EMAIL_SECRET},
            "storefrontSignature": {"api_key": SIGN_IT},
        }

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve the application during the block; yields its URL."""
        server = make_server("127.0.0.1", 0, self._app, _Threads, _RawPathRequestHandler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def known(self, path: str, name: str, value: Any) -> Any:
        """Return the value to send in place of a generated one: mostly an existing id, project, user or URL.

        A value that does not match the schema is returned without changes, because the API must reject it.
        """
        chance = zlib.crc32(repr(value).encode("utf-8", "replace"))
        verb = path.rpartition("/")[2]
        if f"{{{name}}}" in path and str(value) in {str(each) for each in self._kept.get(name, ())}:
            return self._ids[name][0]
        # A quarter of the ids stays unknown, except for operations with few requests, which need existing ids.
        if chance % 4 == 0 and verb not in self._needed and verb not in self._turned:
            return value
        kind = _kind_of_id(path, name, value)
        if kind == "tgt" and verb in self._turned:
            return self._turned[verb]
        if kind is not None:
            there_are = self._needed.get(verb, self._ids["exp"]) if kind == "exp" else self._ids[kind]
            return there_are[chance % len(there_are)]
        if name == "project_id" and type(value) is int and 0 < value <= MAX_ID:
            return self.customer.project_id
        if name == "user_id" and type(value) is int and 0 < value <= MAX_ROW_ID:
            return self._user_id
        if name == "account_id" and type(value) is int and 0 < value <= MAX_ROW_ID:
            return self.customer.account_id
        if name == "target_id" and isinstance(value, str) and value.strip() and len(value) <= 64:
            return self._target_id
        if name == "base_url" and isinstance(value, str) and len(value) < 2000:
            return f"https://{HOST}/hook"
        return value


def _kind_of_id(path: str, name: str, value: Any) -> str | None:
    """Return the kind of id that a value can be replaced by, or None if it is no id.

    In a path, any valid id or number can be replaced by an existing one.
    """
    found = _ID.fullmatch(value) if isinstance(value, str) else None
    if f"{{{name}}}" not in path:
        return found[1] if found else None
    most = MAX_ID if name == "scan_run_id" else MAX_ROW_ID
    fits = 0 < value <= most if isinstance(value, int) else found is not None
    return _KINDS.get(name) if fits else None


class _Signing:
    """Signs the body of a request with SIGN_IT. The generator of requests sets headers before it knows the body."""

    def __init__(self, app: App) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        if environ.get(_SIGNATURE) == SIGN_IT:
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ |= {"wsgi.input": io.BytesIO(body), _SIGNATURE: signature(body)}
        return self._app(environ, start_response)


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _RawPathRequestHandler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def get_environ(self) -> dict[str, Any]:
        environ = super().get_environ()
        if self.headers.get("Content-Type") is None:
            # Unlike production servers, the standard library replaces a missing Content-Type by text/plain.
            environ["CONTENT_TYPE"] = ""
        return environ


def _be_a_worker() -> None:
    """Complete the ping or validation that a request waits for, as a worker would."""
    order, look = pings.claim_next(utc_now()), validations.claim_next(utc_now(), lease_s=30)
    if order:
        pings.finish(order.id, PingResult(delivered=True, response_status=202), utc_now())
    if look:
        validations.finish(look, Validation(), utc_now(), "worker:test")
