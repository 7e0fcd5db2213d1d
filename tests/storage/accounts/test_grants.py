"""Who may submit data for which project and report, on both databases: one row for each case."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

from schemas.base.errors import Forbidden, ValidationFailed
from schemas.base.principal import TokenKind, TokenPrincipal
from storage.accounts.grants import ManagedProject, manageable
from storage.db.engine import execute
from tests.support.database import query_plans
from tests.support.factories import Customer, make_colleague, make_customer, make_project, make_report

#: The largest INTEGER of PostgreSQL, and larger numbers.
LARGE = (2**31 - 1, 2**31, 2**53, 2**63 - 1)


def principal(customer: Customer) -> TokenPrincipal:
    return TokenPrincipal(1, customer.user_id, customer.account_id, TokenKind.PLATFORM, frozenset(), may_use_webhooks=True)


@dataclass(frozen=True, slots=True)
class AccountsAndProjects:
    """Two projects of one account with two reports each, another account, and users with different grants.

    `owner` manages the first project, `guest` only its first report, `nobody` nothing; `stranger` belongs to the other
    account.
    """

    owner: Customer
    guest: Customer
    nobody: Customer
    stranger: Customer
    project: int
    second: int
    strange_project: int
    report: int
    sibling: int
    seconds_report: int
    strange_report: int


@pytest.fixture
def world(customer: Customer) -> AccountsAndProjects:
    guest, nobody, stranger = make_colleague(customer), make_colleague(customer), make_customer()
    second = make_project(customer, is_granted=False)
    return AccountsAndProjects(
        owner=customer,
        guest=guest,
        nobody=nobody,
        stranger=stranger,
        project=customer.project_id,
        second=second,
        strange_project=stranger.project_id,
        report=make_report(customer.project_id, guest),
        sibling=make_report(customer.project_id),
        seconds_report=make_report(second),
        strange_report=make_report(stranger.project_id, stranger),
    )


Asked = Callable[[AccountsAndProjects], tuple[Customer, int, int | None]]

MAY: dict[str, Asked] = {
    "a project of one's own": lambda w: (w.owner, w.project, None),
    "a report of it": lambda w: (w.owner, w.project, w.report),
    "another report of it": lambda w: (w.owner, w.project, w.sibling),
    "the report that was granted": lambda w: (w.guest, w.project, w.report),
    "one's own in another account": lambda w: (w.stranger, w.strange_project, w.strange_report),
}

MAY_NOT: dict[str, Asked] = {
    "a project that was not granted": lambda w: (w.owner, w.second, None),
    "a report of a project that was not granted": lambda w: (w.owner, w.second, w.seconds_report),
    "one's own report in a project that was not granted": lambda w: (w.owner, w.second, w.report),
    "no project at all": lambda w: (w.owner, 999, None),
    "no project at all, with a report": lambda w: (w.owner, 999, w.report),
    "another account's project": lambda w: (w.owner, w.strange_project, None),
    "another account's project and report": lambda w: (w.owner, w.strange_project, w.strange_report),
    "one's own report in another account's project": lambda w: (w.owner, w.strange_project, w.report),
    "a project of which a report was granted": lambda w: (w.guest, w.project, None),
    "another report than the granted one": lambda w: (w.guest, w.project, w.sibling),
    "the granted report in another project": lambda w: (w.guest, w.second, w.report),
    "a user without grants, and a report of another project": lambda w: (w.nobody, w.project, w.seconds_report),
    "a user without grants, and no such report": lambda w: (w.nobody, w.project, 999),
    "nothing was granted": lambda w: (w.nobody, w.project, None),
    "no report was granted": lambda w: (w.nobody, w.project, w.report),
    "the other account's user": lambda w: (w.stranger, w.project, w.report),
}

#: Reports outside the project, requested by users who manage the project or one of its reports.
NOT_IN_PROJECT: dict[str, Asked] = {
    "no such report": lambda w: (w.owner, w.project, 999),
    "a report of another project": lambda w: (w.owner, w.project, w.seconds_report),
    "another account's report": lambda w: (w.owner, w.project, w.strange_report),
    "a report beyond the database's integers": lambda w: (w.owner, w.project, 2**31),
    "the largest report": lambda w: (w.owner, w.project, 2**63 - 1),
    "no such report, for a user of one report": lambda w: (w.guest, w.project, 999),
    "a report of another project, for a user of one report": lambda w: (w.guest, w.project, w.seconds_report),
    "another account's report, for a user of one report": lambda w: (w.guest, w.project, w.strange_report),
}


@pytest.mark.parametrize("case", MAY)
def test_a_granted_user_may_upload(world: AccountsAndProjects, case: str) -> None:
    who, project_id, report_id = MAY[case](world)
    assert manageable(principal(who), project_id, report_id) == ManagedProject(project_id, who.account_id, None)


@pytest.mark.parametrize("case", MAY_NOT)
def test_without_a_grant_a_project_or_report_is_forbidden_whether_it_exists_or_not(
    world: AccountsAndProjects, case: str
) -> None:
    who, project_id, report_id = MAY_NOT[case](world)
    with pytest.raises(Forbidden) as refused:
        manageable(principal(who), project_id, report_id)
    assert refused.value.message == "The token's user may not manage this project or report."


@pytest.mark.parametrize("number", LARGE)
def test_a_project_id_beyond_the_integers_of_the_database_is_forbidden(world: AccountsAndProjects, number: int) -> None:
    for project_id, report_id in ((number, None), (number, world.report), (number, number)):
        with pytest.raises(Forbidden):
            manageable(principal(world.owner), project_id, report_id)


@pytest.mark.parametrize("case", NOT_IN_PROJECT)
def test_a_report_outside_the_project_is_refused_with_the_same_error_for_every_cause(
    world: AccountsAndProjects, case: str
) -> None:
    who, project_id, report_id = NOT_IN_PROJECT[case](world)
    with pytest.raises(ValidationFailed) as refused:
        manageable(principal(who), project_id, report_id)
    [problem] = refused.value.problems
    assert (problem.path, problem.code) == ("/report_id", "report_not_in_project")


def test_every_check_takes_the_same_single_query(world: AccountsAndProjects) -> None:
    asked = [(world.owner, world.project, world.report), (world.guest, world.second, None)]
    asked += [NOT_IN_PROJECT[case](world) for case in NOT_IN_PROJECT]
    with query_plans.statements() as statements:
        for who, project_id, report_id in asked:
            with suppress(Forbidden, ValidationFailed):
                manageable(principal(who), project_id, report_id)
    assert len(statements) == len(asked)


def test_a_grant_on_a_report_or_project_of_another_account_allows_nothing(world: AccountsAndProjects) -> None:
    # No command creates such a grant; if such a row exists, it allows nothing.
    execute("UPDATE grants SET user_id = ? WHERE report_id = ?", (world.owner.user_id, world.strange_report))
    execute("UPDATE grants SET user_id = ? WHERE project_id = ?", (world.owner.user_id, world.strange_project))
    for asked in ((world.strange_project, None), (world.strange_project, world.strange_report)):
        with pytest.raises(Forbidden):
            manageable(principal(world.owner), *asked)


def test_a_withdrawn_grant_ends_at_once(world: AccountsAndProjects) -> None:
    execute("DELETE FROM grants WHERE user_id = ?", (world.owner.user_id,))
    with pytest.raises(Forbidden):
        manageable(principal(world.owner), world.project, None)


def test_the_result_of_a_check_has_the_shop_of_the_project(customer: Customer) -> None:
    project_id = make_project(customer, "Shop.Example")
    assert manageable(principal(customer), project_id, None).shop_domain == "shop.example"
