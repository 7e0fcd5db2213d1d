"""The bodies of requests that manage accounts.

A form for changes requires at least one member and returns only the members that were sent.
"""

from collections.abc import Mapping
from typing import Any, Final

from marshmallow import ValidationError, post_load, validates_schema

from schemas.base.email_address import MAX_CHARACTERS, is_email_address
from schemas.base.fields import Array, Boolean, ChangeForm, Form, Integer, Text, Timestamp, described, optional, required
from schemas.base.principal import ABILITIES, PROJECT_ROLES, Ability, Role, TokenKind
from schemas.intake.grouping import TicketGrouping

#: The largest id of an account, a user, a project or a report.
MAX_ROW_ID: Final = 999_999_999
MAX_NAME: Final = 200


def _name(**options: Any) -> Text:
    return Text(min_length=1, max_length=MAX_NAME, **options)


def _row_id(**options: Any) -> Integer:
    return Integer(minimum=1, maximum=MAX_ROW_ID, **options)


def _account_id() -> Integer:
    return _row_id(**optional("The id of the account, only with the ability `admin`; default: the token's account."))


def _grouping(**more: Any) -> Text:
    description = (
        "How new findings become tickets. `rule`: one ticket for all findings of a rule; "
        "`finding`: one ticket for each finding."
    )
    return Text(allowed=TicketGrouping, **described(description, **more))


def _role(**more: Any) -> Text:
    description = "The user's role in the account; null: only the roles of grants count."
    return Text(allowed=Role, allow_none=True, **described(description, **more))


class AccountForm(Form):
    """The body of `POST /api/accounts`."""

    name = _name(**required("The name of the account."))
    may_use_webhooks = Boolean(**described("Whether the account may use targets: webhooks and trackers.", load_default=True))


class AccountNameForm(Form):
    """The body of `PATCH /api/account`."""

    name = _name(**required("The name of the account."))


class AccountChangeForm(ChangeForm):
    """The body of `PATCH /api/accounts/<id>`."""

    name = _name(**described("The name of the account."))
    may_use_webhooks = Boolean(
        **described(
            "Whether the account may use targets: webhooks and trackers. `false` blocks its "
            "targets and the exports that wait for them; after `true`, resume each target."
        )
    )


class NewProjectForm(Form):
    """The body of `POST /api/projects`."""

    name = _name(**required("The name of the project."))
    shop_domain = Text(max_length=254, **optional("The storefront's domain; null if the project is not a storefront."))
    ticket_grouping = _grouping(load_default=TicketGrouping.RULE.value)
    account_id = _account_id()


class ProjectChangeForm(ChangeForm):
    """The body of `PATCH /api/projects/<id>`."""

    name = _name(**described("The name of the project."))
    shop_domain = Text(max_length=254, **described("The storefront's domain; null removes it.", allow_none=True))
    ticket_grouping = _grouping()


class UserForm(Form):
    """The body of `POST /api/users`."""

    email = Text(
        max_length=MAX_CHARACTERS,
        **required("The user's email address, unique in the installation; the console shows it as the user's name."),
    )
    role = _role(load_default=Role.OWNER.value)
    account_id = _account_id()

    @validates_schema
    def _require_address(self, user: Mapping[str, Any], **_: Any) -> None:
        if not is_email_address(user["email"]):
            raise ValidationError("invalid_email", "email")


class UserChangeForm(ChangeForm):
    """The body of `PATCH /api/users/<id>`."""

    role = _role()
    state = Text(
        allowed=("active", "disabled"),
        **described("The state of the user; `disabled` refuses the user's tokens and ends the user's sessions."),
    )


class GrantForm(Form):
    """The body of `POST /api/grants`."""

    user_id = _row_id(**required("The id of the user."))
    project_id = _row_id(**optional("The id of the project that the user may manage."))
    report_id = _row_id(**optional("The id of the report that the user may manage, in place of a project."))
    role = Text(
        allowed=PROJECT_ROLES,
        **optional("The role in the project, for a user without a role in the account; null: the user may only upload."),
    )

    @validates_schema
    def _require_scope(self, grant: Mapping[str, Any], **_: Any) -> None:
        if (grant["project_id"] is None) == (grant["report_id"] is None) or (grant["role"] and grant["report_id"]):
            raise ValidationError("project_or_report")


class TokenForm(Form):
    """The body of `POST /api/tokens`."""

    user_id = _row_id(**optional("The id of the user that the token acts for; default: the user of this request's token."))
    kind = Text(
        allowed=TokenKind,
        **required(
            "The kind of token: `api` for clients, `platform` for the browser extension, the plugin and the storefront app."
        ),
    )
    abilities = Array(
        Text(allowed=Ability),
        at_least=1,
        at_most=len(Ability),
        **optional(
            "The abilities of the token. An `api` token gets at most those of this request's token; "
            "default: all that are allowed except `console`, `account:manage` and `admin`."
        ),
    )
    name = Text(max_length=MAX_NAME, **described("The purpose of the token.", load_default=""))
    expires_at = Timestamp(**optional("The time at which the token expires; null or absent: never."))

    @post_load
    def _make(self, token: dict[str, Any], **_: Any) -> dict[str, Any]:
        kind = TokenKind(token["kind"])
        abilities = [Ability(each) for each in token["abilities"] or ()]
        if not {*abilities} <= {*ABILITIES[kind]}:
            raise ValidationError("not_allowed", "abilities")
        return {**token, "kind": kind, "abilities": list(dict.fromkeys(abilities))}


class ScanRunForm(Form):
    """The body of `POST /api/scan-runs`."""

    project_id = _row_id(**required("The id of the project that the results belong to."))
    id = Integer(
        minimum=1,
        **optional(
            "The scanner's number of the scan run, only with a token of the operator's account; default: "
            "the next free number."
        ),
    )
