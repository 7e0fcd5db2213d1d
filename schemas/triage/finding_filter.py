"""Which findings a list has: the filters of `schemas.triage.export_filter`, and the state of a finding."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas.base.fields import Form
from schemas.findings.life_cycle import FindingState
from schemas.intake.scanner import SEVERITIES
from schemas.triage.export_filter import PROJECT_ID, Hosts, ListQuery, OneOrMore, ProjectIdValues, SearchText
from schemas.triage.search_words import lowered

#: Each word is searched in all findings that the other filters leave: no index has the words of findings.
_MAX_WORDS: Final = 10


@dataclass(frozen=True, slots=True)
class FindingQuery(ListQuery):
    """The filters of a list of an account's findings."""

    states: tuple[str, ...] = ()
    #: Digests of pages, as `schemas.intake.page_url` makes them; for the console.
    pages: tuple[str, ...] = ()


class FindingFilterForm(Form):
    """The filters of a list of findings; each value is a text with commas."""

    state = OneOrMore("states", "Only findings with these states.", FindingState)
    severity = OneOrMore("severities", "Only findings with these severities.", SEVERITIES)
    project_id = ProjectIdValues("project_ids", "Only findings of these projects.", form=PROJECT_ID)
    rule = OneOrMore("rules", "Only findings with exactly these rule codes; write a comma in a code as `\\,`.")
    host = Hosts("hosts", "Only findings on pages of these hosts.")
    # Not folded further: databases change only the case of texts, and keep, for example, a sharp s.
    q = SearchText("Only findings with all these words, at most 10.", lowered, at_most=_MAX_WORDS)


_FORM: Final = FindingFilterForm()
#: The names of the parameters that are filters.
FINDING_FILTERS: Final = tuple(_FORM.fields)


def finding_query_from(parameters: Mapping[str, Any], account_id: int) -> FindingQuery:
    """Return the query of an account from the parameters of a URL. Raises ValidationFailed with every problem."""
    given = _FORM.read({name: parameters[name] for name in FINDING_FILTERS if name in parameters})
    return FindingQuery(account_id, **given)
