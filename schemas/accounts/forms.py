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
    return _row_id(**optional("The account, with the ability `admin`; default: that of the token."))


def _grouping(**more: Any) -> Text:
    description = "`rule`: one ticket for all findings of a rule; `finding`: one for each."
    return Text(allowed=TicketGrouping, **described(description, **more))


def _role(**more: Any) -> Text:
    description = "What the user may do in the account; null: only the roles of grants count."
    return Text(allowed=Role, allow_none=True, **described(description, **more))


class AccountForm(Form):
    """The body of `POST /api/accounts`."""

    name = _name(**required("The name."))
    may_use_webhooks = Boolean(**described("Whether webhook and tracker targets are allowed.", load_default=True))


class AccountNameForm(Form):
    """The body of `PATCH /api/account`."""

    name = _name(**required("The name."))


class AccountChangeForm(ChangeForm):
    """The body of `PATCH /api/accounts/<id>`."""

    name = _name(**described("The name."))
    may_use_webhooks = Boolean(
        **described("`false` blocks the account's targets and what waits for them; after `true`, resume each target.")
    )


class NewProjectForm(Form):
    """The body of `POST /api/projects`."""

    name = _name(**required("The name."))
    shop_domain = Text(max_length=254, **optional("The storefront's domain, if it is a storefront."))
    ticket_grouping = _grouping(load_default=TicketGrouping.RULE.value)
    account_id = _account_id()


class ProjectChangeForm(ChangeForm):
    """The body of `PATCH /api/projects/<id>`."""

    name = _name(**described("The name."))
    shop_domain = Text(max_length=254, **described("The storefront's domain; null removes it.", allow_none=True))
    ticket_grouping = _grouping()


class UserForm(Form):
    """The body of `POST /api/users`."""

    email = Text(max_length=MAX_CHARACTERS, **required("The address, which names the user at the console."))
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
        allowed=("active", "disabled"), **described("`disabled` refuses the user's tokens and ends the user's sessions.")
    )


class GrantForm(Form):
    """The body of `POST /api/grants`."""

    user_id = _row_id(**required("The user."))
    project_id = _row_id(**optional("The project that the user may manage."))
    report_id = _row_id(**optional("The report that the user may manage, in place of a project."))
    role = Text(allowed=PROJECT_ROLES, **optional("What a user without a role in the account may do in the project."))

    @validates_schema
    def _require_scope(self, grant: Mapping[str, Any], **_: Any) -> None:
        if (grant["project_id"] is None) == (grant["report_id"] is None) or (grant["role"] and grant["report_id"]):
            raise ValidationError("project_or_report")


class TokenForm(Form):
    """The body of `POST /api/tokens`."""

    user_id = _row_id(**optional("The user that the token acts for; default: that of the token of this request."))
    kind = Text(
        allowed=TokenKind, **required("`api` for clients, `platform` for browser extension, plugin and storefront app.")
    )
    abilities = Array(
        Text(allowed=Ability),
        at_least=1,
        at_most=len(Ability),
        **optional("At most those of the token of this request; default: of these, all but console, account:manage, admin."),
    )
    name = Text(max_length=MAX_NAME, **described("The token's purpose.", load_default=""))
    expires_at = Timestamp(**optional("When it expires; null or absent: never."))

    @post_load
    def _make(self, token: dict[str, Any], **_: Any) -> dict[str, Any]:
        kind = TokenKind(token["kind"])
        abilities = [Ability(each) for each in token["abilities"] or ()]
        if not {*abilities} <= {*ABILITIES[kind]}:
            raise ValidationError("not_allowed", "abilities")
        return {**token, "kind": kind, "abilities": list(dict.fromkeys(abilities))}


class ScanRunForm(Form):
    """The body of `POST /api/scan-runs`."""

    project_id = _row_id(**required("The project that its results belong to."))
    id = Integer(
        minimum=1, **optional("The scanner's id, with a token of the operator's account; default: the next free one.")
    )
