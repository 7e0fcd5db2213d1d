"""When a finding is fixed or reopened: a table of cases, and arbitrary sequences of runs compared with a simple model."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.findings.life_cycle import (
    CheckedRules,
    FindingState,
    LifeCycle,
    RunOutcome,
    after_miss,
    after_report,
    counts_as_visit,
)

#: A postback: the number of its run, and whether it reports the finding.
Posted = tuple[int, bool]


def replay(posts: Sequence[Posted], fixed_after_runs: int = 2) -> tuple[LifeCycle, dict[int, RunOutcome]]:
    """Apply postbacks to a finding that run 0 has reported; return its state and the outcome of each run."""
    finding, outcomes, fixed_by = LifeCycle(), {0: RunOutcome.SEEN}, -1
    for run, is_reported in posts:
        own, was_fixed, outcome = outcomes.get(run), finding.is_fixed, None
        if is_reported:
            finding, outcome = after_report(finding, own, has_fixed=fixed_by == run)
        else:
            finding, outcome = after_miss(finding, own, fixed_after_runs)
        if outcome is not None:
            outcomes[run] = outcome
        if finding.is_fixed and not was_fixed:
            fixed_by = run
    return finding, outcomes


SEEN, MISSED, FIXED, REOPENED = RunOutcome.SEEN, RunOutcome.MISSED, RunOutcome.FIXED, RunOutcome.REOPENED

#: Postbacks for a page after run 0 has reported a finding there; the resulting state; the outcome of each run.
CASES: dict[str, tuple[list[Posted], LifeCycle, dict[int, RunOutcome]]] = {
    "one run without it": ([(1, False)], LifeCycle(1), {1: MISSED}),
    "two runs without it": ([(1, False), (2, False)], LifeCycle(2, is_fixed=True), {1: MISSED, 2: FIXED}),
    "a run that posts twice counts once": ([(1, False), (1, False)], LifeCycle(1), {1: MISSED}),
    "runs at once count once each": ([(1, False), (2, True), (1, False)], LifeCycle(0), {1: MISSED, 2: SEEN}),
    "a report restarts the count": ([(1, False), (2, True), (3, False)], LifeCycle(1), {1: MISSED, 2: SEEN, 3: MISSED}),
    "the first run again without it": ([(0, False), (1, False)], LifeCycle(1), {0: SEEN, 1: MISSED}),
    "a run that has reported it posts a part without it": ([(1, True), (1, False)], LifeCycle(0), {1: SEEN}),
    "a run without it at first": ([(1, False), (1, True), (2, False)], LifeCycle(1), {1: SEEN, 2: MISSED}),
    "fixed stays fixed": ([(1, False), (2, False), (3, False)], LifeCycle(2, is_fixed=True), {1: MISSED, 2: FIXED}),
    "open again": (
        [(1, False), (2, False), (3, True)],
        LifeCycle(0, is_fixed=False, times_reopened=1),
        {1: MISSED, 2: FIXED, 3: REOPENED},
    ),
    "open again, posted twice": (
        [(1, False), (2, False), (3, True), (3, True)],
        LifeCycle(0, is_fixed=False, times_reopened=1),
        {1: MISSED, 2: FIXED, 3: REOPENED},
    ),
    "a run takes back its own fix": ([(1, False), (2, False), (2, True)], LifeCycle(0), {1: MISSED, 2: SEEN}),
    "an earlier run opens it again": (
        [(1, False), (2, False), (1, True)],
        LifeCycle(0, is_fixed=False, times_reopened=1),
        {1: REOPENED, 2: FIXED},
    ),
    "an earlier fix is not the run's to take back": (
        [(1, False), (2, False), (3, True), (4, False), (5, False), (2, True)],
        LifeCycle(0, is_fixed=False, times_reopened=2),
        {1: MISSED, 2: REOPENED, 3: REOPENED, 4: MISSED, 5: FIXED},
    ),
    "fixed again": (
        [(1, False), (2, False), (3, True), (4, False), (5, False)],
        LifeCycle(2, is_fixed=True, times_reopened=1),
        {1: MISSED, 2: FIXED, 3: REOPENED, 4: MISSED, 5: FIXED},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_runs_change_the_state_of_a_finding_as_listed(name: str) -> None:
    posts, finding, outcomes = CASES[name]
    assert replay(posts) == (finding, {0: SEEN, **outcomes})


def test_the_number_of_runs_until_a_finding_is_fixed_can_be_set() -> None:
    assert replay([(1, False)], fixed_after_runs=1)[0].is_fixed
    assert not replay([(1, False), (2, False)], fixed_after_runs=3)[0].is_fixed
    assert replay([(1, False), (2, False), (3, False)], fixed_after_runs=3)[0].is_fixed


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30), st.integers(1, 4))
def test_any_sequence_of_runs_agrees_with_a_simple_model(posts: list[Posted], fixed_after_runs: int) -> None:
    """The model: runs with any postback, runs that missed the finding since its last report, and the run that fixed it."""
    known, counting, fixed_by, reopened = {0}, set[int](), None, 0
    for run, is_reported in posts:
        if is_reported:
            reopened += fixed_by not in {None, run}
            counting, fixed_by = set(), None
            known.add(run)
        elif fixed_by is None and run not in known:
            counting.add(run)
            known.add(run)
            fixed_by = run if len(counting) == fixed_after_runs else None
    finding, outcomes = replay(posts, fixed_after_runs)
    assert finding == LifeCycle(len(counting), fixed_by is not None, reopened)
    assert set(outcomes) == known
    assert fixed_by is None or outcomes[fixed_by] is FIXED


@pytest.mark.parametrize(
    ("status", "status_code", "is_visit"),
    [
        ("completed", None, True),
        ("completed", 200, True),
        ("completed", 204, True),
        ("completed", 199, False),
        ("completed", 299, True),
        ("completed", 300, False),
        ("completed", 301, False),
        ("completed", 404, False),
        ("completed", 503, False),
        ("partial", 200, False),
        ("failed", 200, False),
        ("cancelled", 200, False),
        ("running", 200, False),
    ],
)
def test_a_page_counts_as_visited_if_a_completed_run_received_it(
    status: str, status_code: int | None, is_visit: bool
) -> None:
    assert counts_as_visit(status, status_code) is is_visit


@pytest.mark.parametrize(
    ("code", "rules", "checked"),
    [
        ("csp", None, True),
        ("cspx", ["csp-*"], False),
        ("csp", (), False),
        ("csp", ("img-alt", "csp"), True),
        (" csp ", (" csp",), True),
        ("csp", ("CSP",), False),
        ("csp-header", ("csp",), False),
        ("zap:10038-1", ("zap:*",), True),
        ("lighthouse:csp", ("zap:*",), False),
        ("csp", ("*",), True),
        ("csp", ("*", "img-alt"), True),
        ("zap:", ("zap:*",), True),
        ("zap", ("zap:*",), False),
        ("zap:10038-1", ("zap:100*", "lighthouse:*"), True),
        ("zap:10138-1", ("zap:100*", "lighthouse:*"), False),
        ("a*b", ("a*b",), True),
        ("axb", ("a*b",), False),
        ("a*", ("a*",), True),
        ("", ("",), True),
    ],
)
def test_a_run_checks_only_the_rules_that_it_names(code: str, rules: tuple[str, ...] | None, checked: bool) -> None:
    assert (code in CheckedRules(rules)) is checked


@pytest.mark.parametrize("end", ["", "*"])
def test_the_rules_of_a_page_are_read_once_for_all_its_findings(end: str) -> None:
    checked = CheckedRules(f"rule-{number:05}{end}" for number in range(20_000))
    findings = [f"rule-{number:05}" for number in range(0, 40_000, 4)]
    assert [each for each in findings if each in checked] == findings[:5_000]


def test_states_and_outcomes_have_the_values_of_the_api() -> None:
    assert [*FindingState] == ["open", "fixed", "dismissed", "snoozed"]
    assert [*RunOutcome] == ["seen", "missed", "fixed", "reopened"]
