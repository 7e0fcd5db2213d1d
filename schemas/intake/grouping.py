"""How the findings of a project become tickets: one for each finding, or one for all findings of a rule."""

from enum import StrEnum
from typing import Any

from marshmallow import post_load

from schemas.base.fields import Form, Text, required


class TicketGrouping(StrEnum):
    """The grouping of a project, with the values of the API."""

    RULE = "rule"
    FINDING = "finding"


class ProjectForm(Form):
    """The body of `PATCH /api/projects/<id>`."""

    ticket_grouping = Text(
        allowed=[each.value for each in TicketGrouping],
        **required("`rule`: one ticket for all findings of a rule; `finding`: one for each."),
    )

    @post_load
    def _make(self, project: dict[str, Any], **_: Any) -> TicketGrouping:
        return TicketGrouping(project["ticket_grouping"])
