"""Every command of `bin/riskrelay` with its summary, in the order of an installation's life.

`--help` prints this table: importing all commands would take most of a second. A test compares it with the commands.
"""

from typing import Final, NamedTuple


class Summary(NamedTuple):
    """The first sentence of a command's help; `commands` are those of a group, `default` the one that options alone mean."""

    text: str
    commands: "dict[str, Summary] | None" = None
    default: str | None = None


COMMAND_TABLE: Final[dict[str, Summary]] = {
    "init": Summary("Write .env with generated secrets, and create the first account, user, project and token."),
    "run": Summary("Run everything until Ctrl-C or SIGTERM: Redis, migrations, service and workers."),
    "serve": Summary("Run the HTTP service until SIGTERM; open requests are finished first."),
    "work": Summary("Run the worker daemon until SIGTERM; running deliveries are finished first."),
    "migrate": Summary("Run pending database migrations in order, under a lock."),
    "account": Summary(
        "Manage accounts, which own projects, targets and exports.",
        {
            "add": Summary("Create an account."),
            "list": Summary("List accounts."),
            "set": Summary("Allow or forbid an account's targets, webhooks and trackers, from the next request on."),
        },
    ),
    "user": Summary(
        "Manage the users of an account.",
        {
            "add": Summary("Create a user in an account."),
            "list": Summary("List users."),
            "set": Summary("Set a user's role in the account, from the next request on."),
            "disable": Summary("Refuse a user's tokens and end the user's console sessions, from the next request on."),
            "enable": Summary("Accept a disabled user's tokens again; the user must sign in to the console again."),
            "remove": Summary("Remove a user for good: erase the address, revoke tokens, end sessions, delete grants."),
        },
    ),
    "project": Summary(
        "Manage projects, the websites of an account.",
        {
            "add": Summary("Create a project."),
            "set": Summary("Set how new findings of a project become tickets."),
            "list": Summary("List projects."),
        },
    ),
    "report": Summary(
        "Write a report of a project's findings, or create a report that grants can be limited to.",
        {
            "write": Summary("Write all findings of a project to one file; `write` may be left out."),
            "add": Summary("Create a report."),
        },
        default="write",
    ),
    "scan-run": Summary(
        "Manage scan runs, which assign scanner results to a project.", {"add": Summary("Register a scan run.")}
    ),
    "grant": Summary(
        "Manage grants: the rights of a user in one project or report.",
        {
            "add": Summary("Allow a user to manage a project, or one report of it."),
            "list": Summary("List grants."),
            "remove": Summary("Withdraw a grant, from the next request on."),
        },
    ),
    "token": Summary(
        "Manage API tokens of clients and platform apps.",
        {
            "create": Summary("Create a token and print it, once, alone on standard output."),
            "list": Summary("List tokens, without their values."),
            "revoke": Summary("Revoke one token, or all tokens of a user; the next request with one gets 401."),
        },
    ),
    "session": Summary(
        "Manage console sessions.",
        {
            "list": Summary("List open console sessions, newest first."),
            "revoke": Summary("End one session, or all sessions of a user; the user must sign in again."),
        },
    ),
    "secret": Summary(
        "Set secrets from standard input and list their fingerprints.",
        {
            "list": Summary("List secrets as fingerprints, with connected status and last validation."),
            "set": Summary(
                "Set a secret from one line on standard input; the old one stops working at once.",
                {
                    "scanner": Summary("Set the shared secret of the scanner; it overrides the environment."),
                    "email": Summary("Set the shared secret of inbound email; it overrides the environment."),
                    "storefront": Summary("Set the shared secret of storefront webhooks; it overrides the environment."),
                    "target": Summary("Set the signing secret of a webhook, or the token of a tracker."),
                },
            ),
        },
    ),
    "target": Summary(
        "Manage targets, the webhooks and trackers that tickets are delivered to.",
        {
            "list": Summary("List targets, newest first."),
            "show": Summary("Show one target."),
            "add": Summary("Create a target: a webhook, or a tracker, whose token is read from standard input."),
            "set": Summary("Change a target's name, URL, settings, signature, format or rate limit."),
            "remove": Summary("Remove a target that no export waits for, and erase its secrets."),
            "validate": Summary(
                "Check a target's URL, DNS, connection and certificate; a tracker's token, rights and settings too."
            ),
            "ping": Summary("Send one signed test event to a target and print the result; validate a target of a tracker."),
            "pause": Summary("Pause deliveries to a target; its exports wait."),
            "resume": Summary("Resume deliveries, and clear holds that the receiver or failures caused."),
            "disable": Summary("Disable a target: it accepts no approvals and receives no deliveries."),
            "limit": Summary("Set a rate limit: attempts per minute over all workers, or none."),
        },
    ),
    "export": Summary(
        "Manage ticket exports.",
        {
            "list": Summary("List exports, newest first, or in the order --sort."),
            "show": Summary("Show one export, and whether its target was removed."),
            "open": Summary("Print the link of the ticket at its target."),
            "attempts": Summary("List the delivery attempts of an export, newest first, with address and response."),
            "prepare": Summary("Prepare a ticket by hand, from options or JSON, with the checks that the API makes."),
            "approve": Summary(
                "Approve a prepared export, or all that match filters, for a target; a worker delivers them."
            ),
            "dismiss": Summary("Dismiss a prepared export, or all that match filters."),
            "restore": Summary("Make a dismissed export, or all that match filters, prepared again, or end a snooze."),
            "snooze": Summary("Snooze a prepared export; it stays prepared, and an approval ends the snooze."),
            "split": Summary("Turn a prepared group into one export for each of its findings."),
            "edit": Summary("Replace parts of a prepared ticket; the original is kept."),
            "retry": Summary("Redeliver a failed or blocked export, or all that match filters, with a new retry schedule."),
            "bulk": Summary("Show, list or cancel bulk jobs: decisions on every export that matched filters."),
            "recover": Summary("Redeliver all failed or blocked exports of a target, each with a new retry schedule."),
        },
    ),
    "rule": Summary(
        "Manage approval rules, which decide on exports when they are prepared.",
        {
            "add": Summary("Create a rule of a user's account; of several rules that match, the oldest decides."),
            "list": Summary("List approval rules, newest first."),
            "show": Summary("Show one approval rule."),
            "set": Summary("Change an approval rule."),
            "remove": Summary("Delete an approval rule; what it decided stays decided."),
            "test": Summary("Show what a rule would have matched in the last 30 days; changes nothing."),
        },
    ),
    "sweep": Summary(
        "Wake the workers if exports are due, leases have expired or targets were turned off, and send alerts."
    ),
    "alert": Summary(
        "Test the channels of alerts, and list alerts.",
        {
            "test": Summary("Send a test message to each configured channel, and print each response."),
            "acknowledge": Summary("Silence an open alert until it occurs again."),
            "list": Summary(
                "List alerts: open ones, the latest first, then those that are over, newest first; a table shows 100."
            ),
        },
    ),
    "compliance": Summary(
        "Process compliance requests: data requests, customer erasures and shop erasures.",
        {
            "run": Summary("Process the waiting requests, oldest first; an interrupted request is resumed later."),
            "list": Summary("List compliance requests: waiting ones by due date, then finished ones, newest first."),
            "show": Summary("Show one compliance request."),
            "repeat": Summary("Repeat the finished erasure of a shop that was installed and removed again."),
            "export": Summary("Write the erasure log for `restore --redactions` to FILE or standard output."),
        },
    ),
    "audit": Summary(
        "List, export and verify the audit log, which is a hash chain.",
        {
            "list": Summary("List entries of the audit log, newest first."),
            "export": Summary("Write the audit log as JSON Lines to FILE or standard output, and verify it."),
            "verify": Summary("Verify the audit log in the database, or an export of it in FILE; - reads standard input."),
        },
    ),
    "receipt": Summary(
        "Show and verify delivery receipts: proof of what was approved, sent and accepted.",
        {
            "show": Summary("Print the delivery receipt of an exported export as JSON; the API returns the same."),
            "verify": Summary("Verify the delivery receipt in FILE; needs neither database nor settings."),
        },
    ),
    "prune": Summary("Delete records older than RETENTION_DAYS: exports with their attempts, page results, keys, tokens."),
    "rotate-keys": Summary("Encrypt secrets with the first of ENCRYPTION_KEYS, and report when the others can be removed."),
    "backup": Summary("Back up the database to FILE, or to a new file in a folder, while everything runs."),
    "restore": Summary("Restore the database from a backup; every target stays paused until you resume it."),
    "doctor": Summary("Check this installation and print a fix for each problem."),
    "completion": Summary("Print the shell completion script."),
    "listen": Summary("Run a test receiver that verifies and prints deliveries, and can fail on request."),
    "trigger": Summary("Send a signed sample ticket, or an event of a ticket, to a receiver and explain its response."),
    "import-scan": Summary("Import a scanner's report as tickets, one postback per page, through the public API."),
    "demo": Summary(
        "Run the whole workflow on a temporary installation: scan, approve, deliver to a webhook and a simulated GitHub."
    ),
}


def summary_of(*path: str) -> str:
    """Return the summary of the command at `path`, such as `"secret", "list"`."""
    summary = COMMAND_TABLE[path[0]]
    for name in path[1:]:
        summary = (summary.commands or {})[name]
    return summary.text
