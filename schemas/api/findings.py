"""Findings and their history over scan runs."""

from schemas.api import response_fields as field
from schemas.api.response_fields import ResponseSchema
from schemas.findings.life_cycle import FindingState, RunOutcome
from schemas.intake.scanner import SEVERITIES


class FindingResponse(ResponseSchema):
    """One issue on one page of a project."""

    id = field.identifier("fnd", "The id of the finding.")
    project_id = field.number("The id of the project.", minimum=1)
    rule = field.text("The rule code; for an issue without one, its title.", example="img-alt")
    title = field.text("The issue in one line.", example="Image without alternative text")
    severity = field.one_of(SEVERITIES, "The highest severity that a scan run reported.", example="high")
    state = field.one_of(
        FindingState,
        "`fixed` after enough scan runs did not report the finding; otherwise the state that follows "
        "from the decision on its ticket.",
    )
    url = field.text("The URL of the page.", example="https://shop.example/")
    location = field.text("The location on the page; may be empty.", example="main > img.hero")
    first_seen_at = field.moment("The time at which a scan run first reported the finding.")
    last_seen_at = field.moment("The time at which a scan run last reported the finding.")
    fixed_at = field.moment("The time at which the finding became fixed", null="if it is not fixed")
    times_reopened = field.number("The number of times that the finding was reported again after it was fixed.")
    scan_runs = field.number("The number of scan runs that reported the finding.", example=1)
    ticket_export_id = field.identifier(
        "exp", "The id of the export with the finding's ticket", null="if the export was deleted"
    )


class FindingRunResponse(ResponseSchema):
    """The result of one scan run for a finding."""

    scan_run_id = field.number("The id of the scan run.", minimum=1, example=42)
    at = field.moment("The time at which the scan run first posted the page.")
    outcome = field.one_of(
        RunOutcome,
        "`seen`: the run reported the finding. `missed`: the run visited the page and did not report the finding. `fixed`: "
        "a missed run after which the finding is fixed. `reopened`: the run reported the finding after it was fixed.",
    )


class FindingHistoryResponse(FindingResponse):
    """A finding with its history."""

    history = field.several(FindingRunResponse, "The results of the scan runs, newest first, up to 200.")
