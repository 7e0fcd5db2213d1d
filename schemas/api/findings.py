"""Findings and their history over scan runs."""

from schemas.api import response_fields as field
from schemas.api.response_fields import ResponseSchema
from schemas.findings.life_cycle import FindingState, RunOutcome
from schemas.intake.scanner import SEVERITIES


class FindingResponse(ResponseSchema):
    """One issue on one page of a project."""

    id = field.identifier("fnd", "The finding.")
    project_id = field.number("Its project.", minimum=1)
    rule = field.text("The rule code, or the title of an issue without one.", example="img-alt")
    title = field.text("The issue in one line.", example="Image without alternative text")
    severity = field.one_of(SEVERITIES, "The highest severity that was reported.", example="high")
    state = field.one_of(FindingState, "`fixed` if enough scan runs did not report it, else what was decided on its ticket.")
    url = field.text("The page.", example="https://shop.example/")
    location = field.text("The location on the page; may be empty.", example="main > img.hero")
    first_seen_at = field.moment("When a scan run first reported it.")
    last_seen_at = field.moment("When a scan run last reported it.")
    fixed_at = field.moment("When it was fixed; null if it is not.", nullable=True)
    times_reopened = field.number("How often it was reported again after it was fixed.")
    scan_runs = field.number("How many scan runs have reported it.", example=1)
    ticket_export_id = field.identifier("exp", "The export of its ticket; null if that was deleted.", nullable=True)


class FindingRunResponse(ResponseSchema):
    """The result of one scan run for a finding."""

    scan_run_id = field.number("The scan run.", minimum=1, example=42)
    at = field.moment("When the run first posted the page.")
    outcome = field.one_of(
        RunOutcome,
        "`seen`: reported. `missed`: the run visited the page and did not report it. `fixed`: missed, by the last run "
        "that was needed. `reopened`: reported after it was fixed.",
    )


class FindingHistoryResponse(FindingResponse):
    """A finding with its history."""

    history = field.several(FindingRunResponse, "The scan runs, the latest first; up to 200.")
