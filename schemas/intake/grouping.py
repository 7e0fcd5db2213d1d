"""How the findings of a project become tickets: one for each finding, or one for all findings of a rule."""

from enum import StrEnum


class TicketGrouping(StrEnum):
    """The grouping of a project, with the values of the API."""

    RULE = "rule"
    FINDING = "finding"
