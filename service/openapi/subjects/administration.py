"""Documents accounts, users, grants, tokens, projects, scan runs, sessions, the audit log and compliance requests."""

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
_COMPLIANCE_REQUEST: Final = Record("request", ComplianceRequestResponse, "ComplianceRequest", title="compliance request")
_SESSION: Final = Record("session", ConsoleSessionResponse, "ConsoleSession", title="console session")

OPERATIONS: Final[Operations] = {
    "POST /api/projects": _PROJECT.operation(
        "create",
        "Creates a project. Users get access to it by their role in the account or by grants.",
        _PROJECT.created(),
        examples={
            "A website": {"name": "Shop"},
            "A storefront": {"name": "Shop", "shop_domain": "snow.shops.example", "ticket_grouping": "rule"},
        },
    ),
    "GET /api/projects": _PROJECT.listed(
        "The projects of the account, newest first; with the ability `admin`, of all accounts. Any API token may read them.",
        "OfAccount",
    ),
    "GET /api/projects/{project_id}": _PROJECT.read("Any API token of the account may read the project."),
    "PATCH /api/projects/{project_id}": _PROJECT.operation(
        "change",
        "Changes the fields in the body. With the `ticket_grouping` `rule`, new findings of one rule share a prepared "
        "export; with `finding`, each new finding prepares an export. Existing exports stay as they are.",
        _PROJECT.response(),
        examples={"Rename": {"name": "Shop"}, "One ticket for each finding": {"ticket_grouping": "finding"}},
    ),
    "GET /api/account": operation(
        "readOwnAccount",
        "Read the account of the token",
        "Includes how much the account stores, and its limits.",
        _ACCOUNT.response(),
    ),
    "PATCH /api/account": operation(
        "renameOwnAccount",
        "Rename the account of the token",
        "Changes the name, which the console shows.",
        _ACCOUNT.response(),
        examples={"Rename": {"name": "Example Ltd"}},
    ),
    "POST /api/accounts": _ACCOUNT.operation(
        "create",
        "Creates an account without users and projects.",
        _ACCOUNT.created(),
        examples={"Create": {"name": "Example Ltd"}, "Without webhooks": {"name": "Trial", "may_use_webhooks": False}},
    ),
    "GET /api/accounts": _ACCOUNT.listed("All accounts of the installation, newest first."),
    "GET /api/accounts/{account_id}": _ACCOUNT.read("Includes how much the account stores, and its limits."),
    "PATCH /api/accounts/{account_id}": _ACCOUNT.operation(
        "change",
        "Changes the fields in the body. If `may_use_webhooks` is false, the account's targets are blocked, and exports "
        "that wait for them are not sent. After you allow webhooks again, each target stays blocked until it is resumed.",
        _ACCOUNT.response(),
        examples={"Rename": {"name": "Example Ltd"}, "Forbid webhooks": {"may_use_webhooks": False}},
    ),
    "POST /api/users": _USER.operation(
        "create",
        "Creates a user. The role cannot be higher than the caller's role. The email address must be "
        "unique in the installation.",
        _USER.created(),
        error_codes=("CONFLICT",),
        examples={
            "Triager": {"email": "ada@shop.example", "role": "triager"},
            "Rights in projects only": {"email": "ada@shop.example", "role": None},
        },
    ),
    "GET /api/users": _USER.listed(
        "The users of the account, newest first, including disabled and removed users; with the "
        "ability `admin`, the users of all accounts.",
        "Email",
        "OfAccount",
    ),
    "GET /api/users/{user_id}": _USER.read("Reads a user; the email address of a removed user is null."),
    "PATCH /api/users/{user_id}": operation(
        "changeUser",
        "Change a user's role, disable or enable a user",
        "Changes take effect with the next request. If the user is the last active owner of the account "
        "and would be disabled or lose the role, the response is 409.",
        _USER.response(),
        error_codes=("CONFLICT",),
        examples={"Change the role": {"role": "manager"}, "Disable": {"state": "disabled"}},
    ),
    "DELETE /api/users/{user_id}": operation(
        "removeUser",
        "Remove a user for good",
        "Erases the email address, revokes the tokens, ends the sessions and deletes the grants. Uploads and the audit log "
        "keep the user's id. If the user is the last active owner of the account, the response is 409.",
        SuccessResponse(204, "The user is removed."),
        error_codes=("CONFLICT",),
    ),
    "POST /api/grants": operation(
        "createGrant",
        "Let a user manage a project or a report",
        "Without a `role`, the user may upload to the project or report. With a `role`, a user without a "
        "role in the account may also see the project and act in it.",
        _GRANT.created(),
        error_codes=("CONFLICT",),
        examples={
            "Uploads to a project": {"user_id": 7, "project_id": 1},
            "Triage of a project": {"user_id": 7, "project_id": 1, "role": "triager"},
            "Uploads to a report": {"user_id": 7, "report_id": 3},
        },
    ),
    "GET /api/grants": _GRANT.listed("The grants, newest first.", "OfUser", "OfProject", "OfAccount"),
    "GET /api/grants/{grant_id}": _GRANT.read("Reads a grant. Exactly one of `project_id` and `report_id` is not null."),
    "DELETE /api/grants/{grant_id}": operation(
        "removeGrant",
        "Withdraw a grant",
        "The user loses the right with the next request.",
        SuccessResponse(204, "The grant is withdrawn."),
    ),
    "POST /api/tokens": _TOKEN.operation(
        "create",
        "Creates a token for the caller, or for another user of the account whose role is not higher than the caller's. An "
        "API token gets no ability that the token of this request lacks. Only this response contains the `token`: it is not "
        "stored, and the response to a repeated request has `null`. If you lose a token, revoke it and create another one.",
        Record("token", NewTokenResponse).created(),
        error_codes=("CONFLICT",),
        examples={
            "For a client": {"kind": "api", "abilities": ["ticket-exports:read"], "name": "nightly export"},
            "For a plugin": {"user_id": 7, "kind": "platform", "abilities": ["cms-plugin:diagnostics-upload"]},
        },
    ),
    "GET /api/tokens": _TOKEN.listed(
        "The tokens, newest first, including revoked and expired tokens; never the tokens themselves.", "OfUser", "OfAccount"
    ),
    "GET /api/tokens/{token_id}": _TOKEN.read("Reads a token's record; never the token itself."),
    "DELETE /api/tokens/{token_id}": _TOKEN.operation(
        "revoke", "The next request with the token gets 401.", SuccessResponse(204, "The token is revoked.")
    ),
    "POST /api/scan-runs": operation(
        "createScanRun",
        "Register a scan run",
        "Registers a scan run: results with its id belong to the project. All accounts share the numbers of one scanner. So "
        "only tokens of the operator's account can choose an `id`; without one they get the next free number. Other "
        "accounts get a number of twelve digits, which the scanner does not use on its own: pass it to the scanner.",
        _SCAN_RUN.created(),
        error_codes=("CONFLICT",),
        examples={"The next number": {"project_id": 1}, "The scanner's number": {"project_id": 1, "id": 42}},
    ),
    "GET /api/scan-runs": _SCAN_RUN.listed(
        "The scan runs, the highest id first.", "OfProject", "OfAccount", order="the highest id first"
    ),
    "GET /api/scan-runs/{scan_run_id}": _SCAN_RUN.read("Reads a scan run. `status` is the status in its last result."),
    "GET /api/audit": _AUDIT_ENTRY.listed(
        "Entries about records of the account, and about actions of its users on records without an account, newest first. "
        "With the ability `admin`, all entries. Entries that are older than this route have no account.",
        *("AuditActor", "AuditAction", "AuditObject", "AuditAfter", "AuditBefore", "OfAccount"),
        summary="List the audit log",
        many="entries",
    ),
    "GET /api/compliance-requests": _COMPLIANCE_REQUEST.listed(
        "The storefront platform's requests about personal data, newest first. The list contains no personal data."
    ),
    "GET /api/compliance-requests/{compliance_id}": _COMPLIANCE_REQUEST.read(
        "Reads a request with its deadline and result; a person appears as a pseudonym."
    ),
    "GET /api/console-sessions": _SESSION.listed(
        "The open console sessions of the token's user, newest first; for an owner, the sessions of all "
        "users of the account."
    ),
    "POST /api/console-sessions/{session_id}/revoke": operation(
        "revokeConsoleSession",
        "End a session",
        "The user must sign in again in that browser. A session that has ended stays as it is. To prevent "
        "another sign-in, revoke the token or disable the user.",
        _SESSION.response("The session, which has ended."),
    ),
}
