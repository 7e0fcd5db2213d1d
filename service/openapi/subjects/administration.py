"""Documents accounts and what is managed in them: users, grants, tokens, projects, scan runs, sessions, the audit log."""

from typing import Final

from schemas.api.administration import (
    AccountResponse,
    AuditEntryResponse,
    ComplianceRequestResponse,
    ConsoleSessionResponse,
    GrantResponse,
    NewTokenResponse,
    ProjectResponse,
    ScanRunResponse,
    TokenResponse,
    UserResponse,
)
from service.openapi.operations import Operations, Record, SuccessResponse, operation

_PROJECT: Final = Record("project", ProjectResponse)
_ACCOUNT: Final = Record("account", AccountResponse)
_USER: Final = Record("user", UserResponse)
_GRANT: Final = Record("grant", GrantResponse)
_TOKEN: Final = Record("token", TokenResponse)
_SCAN_RUN: Final = Record("scan run", ScanRunResponse)
_AUDIT_ENTRY: Final = Record("entry", AuditEntryResponse, id="AuditEntry")
_COMPLIANCE_REQUEST: Final = Record("request", ComplianceRequestResponse, id="ComplianceRequest")
_SESSION: Final = Record("session", ConsoleSessionResponse, id="ConsoleSession")

OPERATIONS: Final[Operations] = {
    "POST /api/projects": operation(
        "createProject",
        "Create a project",
        "Users get rights in it by their role in the account or by grants.",
        _PROJECT.created("readProject", "changeProject"),
        examples={
            "A website": {"name": "Shop"},
            "A storefront": {"name": "Shop", "shop_domain": "snow.shops.example", "ticket_grouping": "rule"},
        },
    ),
    "GET /api/projects": _PROJECT.listed(
        "Those of the account, the newest first; with the ability `admin`, of all accounts. Any API token may read them.",
        "OfAccount",
    ),
    "GET /api/projects/{project_id}": _PROJECT.read("Any API token of the account may read it."),
    "PATCH /api/projects/{project_id}": operation(
        "changeProject",
        "Change a project",
        "Its name, its shop domain, and how findings become tickets: with `rule`, new findings of one rule "
        "share a prepared export; with `finding`, each prepares one. Exports that exist stay as they are.",
        _PROJECT.response(ticket_grouping="finding"),
        examples={"Rename": {"name": "Shop"}, "One ticket for each finding": {"ticket_grouping": "finding"}},
    ),
    "GET /api/account": operation(
        "readOwnAccount", "Read the account of the token", "With what it stores, and its limits.", _ACCOUNT.response()
    ),
    "PATCH /api/account": operation(
        "renameOwnAccount",
        "Rename the account of the token",
        "The name is shown at the console.",
        _ACCOUNT.response(),
        examples={"Rename": {"name": "Example Ltd"}},
    ),
    "POST /api/accounts": operation(
        "createAccount",
        "Create an account",
        "It has no users and no projects yet.",
        _ACCOUNT.created("readAccount", "changeAccount"),
        examples={"Create": {"name": "Example Ltd"}, "Without webhooks": {"name": "Trial", "may_use_webhooks": False}},
    ),
    "GET /api/accounts": _ACCOUNT.listed("All of the installation, the newest first."),
    "GET /api/accounts/{account_id}": _ACCOUNT.read("With what it stores, and its limits."),
    "PATCH /api/accounts/{account_id}": operation(
        "changeAccount",
        "Change an account",
        "With `may_use_webhooks` false, its targets are blocked, and what waits for them is not sent. Allowed "
        "again, a target stays blocked until it is resumed.",
        _ACCOUNT.response(may_use_webhooks=False),
        examples={"Rename": {"name": "Example Ltd"}, "Forbid webhooks": {"may_use_webhooks": False}},
    ),
    "POST /api/users": operation(
        "createUser",
        "Create a user",
        "No role above that of the caller. The address is unique in the installation.",
        _USER.created("readUser", "changeUser", "removeUser"),
        error_codes=("CONFLICT",),
        examples={
            "Triager": {"email": "ada@shop.example", "role": "triager"},
            "Rights in projects only": {"email": "ada@shop.example", "role": None},
        },
    ),
    "GET /api/users": _USER.listed("The newest first, with those that are disabled or removed.", "Email", "OfAccount"),
    "GET /api/users/{user_id}": _USER.read("A removed user has no address."),
    "PATCH /api/users/{user_id}": operation(
        "changeUser",
        "Change a user's role, disable or enable a user",
        "Counts from the next request on. The last active owner of an account keeps the role and stays active: 409.",
        _USER.response(role="manager"),
        error_codes=("CONFLICT",),
        examples={"Change the role": {"role": "manager"}, "Disable": {"state": "disabled"}},
    ),
    "DELETE /api/users/{user_id}": operation(
        "removeUser",
        "Remove a user for good",
        "Erases the address, revokes tokens, ends sessions and deletes grants. Uploads and the audit log keep "
        "the user's id. The last active owner of an account stays: 409.",
        SuccessResponse(204, "The user is removed."),
        error_codes=("CONFLICT",),
    ),
    "POST /api/grants": operation(
        "createGrant",
        "Let a user manage a project or a report",
        "Without a `role`, the user may upload to it. With one, a user without a role in the account may also "
        "see the project and act in it.",
        _GRANT.created("readGrant", "removeGrant"),
        error_codes=("CONFLICT",),
        examples={
            "Uploads to a project": {"user_id": 7, "project_id": 1},
            "Triage of a project": {"user_id": 7, "project_id": 1, "role": "triager"},
            "Uploads to a report": {"user_id": 7, "report_id": 3},
        },
    ),
    "GET /api/grants": _GRANT.listed("The newest first.", "OfUser", "OfProject", "OfAccount"),
    "GET /api/grants/{grant_id}": _GRANT.read("Exactly one of `project_id` and `report_id` is set."),
    "DELETE /api/grants/{grant_id}": operation(
        "removeGrant", "Withdraw a grant", "Counts from the next request on.", SuccessResponse(204, "It is withdrawn.")
    ),
    "POST /api/tokens": operation(
        "createToken",
        "Create a token",
        "For the caller or another user of the account whose role is not above the caller's. An API token gets "
        "no ability that the token of this request lacks. `token` is in this response only: it is not stored, and the "
        "response to a repeated request has `null`. A token that was lost is revoked and created again.",
        Record("token", NewTokenResponse).created("readToken", "revokeToken"),
        error_codes=("CONFLICT",),
        examples={
            "For a client": {"kind": "api", "abilities": ["ticket-exports:read"], "name": "nightly export"},
            "For a plugin": {"user_id": 7, "kind": "platform", "abilities": ["cms-plugin:diagnostics-upload"]},
        },
    ),
    "GET /api/tokens": _TOKEN.listed(
        "Without their texts, the newest first, with those that are revoked or expired.", "OfUser", "OfAccount"
    ),
    "GET /api/tokens/{token_id}": _TOKEN.read("Without its text."),
    "DELETE /api/tokens/{token_id}": operation(
        "revokeToken", "Revoke a token", "The next request with it gets 401.", SuccessResponse(204, "It is revoked.")
    ),
    "POST /api/scan-runs": operation(
        "createScanRun",
        "Register a scan run",
        "Results with its id belong to the project. One scanner numbers the runs of all accounts, so only "
        "tokens of the operator's account choose an `id`; without one, it is the next free number.",
        _SCAN_RUN.created("readScanRun"),
        error_codes=("CONFLICT",),
        examples={"The next number": {"project_id": 1}, "The scanner's number": {"project_id": 1, "id": 42}},
    ),
    "GET /api/scan-runs": _SCAN_RUN.listed(
        "Those with the greatest id first.", "OfProject", "OfAccount", order="the greatest id first"
    ),
    "GET /api/scan-runs/{scan_run_id}": _SCAN_RUN.read("`status` is that of its last result."),
    "GET /api/audit": _AUDIT_ENTRY.listed(
        "Entries about the account's records, and what its users did to no account's records, the newest first. "
        "With the ability `admin`: those of all accounts and of none. Entries from before this "
        "route was added belong to none.",
        *("AuditActor", "AuditAction", "AuditObject", "AuditAfter", "AuditBefore", "OfAccount"),
        summary="List the audit log",
        many="entries",
    ),
    "GET /api/compliance-requests": _COMPLIANCE_REQUEST.listed(
        "Requests of the storefront platform about personal data, without any, the newest first.",
        summary="List compliance requests",
    ),
    "GET /api/compliance-requests/{compliance_id}": _COMPLIANCE_REQUEST.read(
        "Its deadline and result; a person appears as a pseudonym.", summary="Read a compliance request"
    ),
    "GET /api/console-sessions": _SESSION.listed(
        "The open console sessions of the token's user, newest first; for an owner, those of the account.",
        summary="List console sessions",
    ),
    "POST /api/console-sessions/{session_id}/revoke": operation(
        "revokeConsoleSession",
        "End a session",
        "Its next request must sign in again. A session that has ended stays as it is. To keep a person out, "
        "the operator revokes the token.",
        _SESSION.response("The session as it ended.", ended_at="2026-03-01T12:41:00.000Z", ended_reason="revoked"),
    ),
}
