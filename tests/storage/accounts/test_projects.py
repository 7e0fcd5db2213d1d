"""A project's shop domain is stored in the form that comparisons use."""

import pytest

from schemas.base.errors import FieldProblem, ValidationFailed
from storage.accounts import projects
from storage.db.engine import rows
from tests.support.factories import NOW, Customer


@pytest.mark.parametrize(
    ("written", "stored"), [("Shop.EXAMPLE.", "shop.example"), ("bücher.example", "xn--bcher-kva.example"), (None, None)]
)
def test_a_projects_shop_is_stored_in_one_form(customer: Customer, written: str | None, stored: str | None) -> None:
    project = projects.add_project("Shop", customer.account_id, NOW, written)
    assert project.shop_domain == stored
    assert rows("SELECT shop_domain FROM projects WHERE id = ?", (project.id,)) == [(stored,)]


@pytest.mark.parametrize("written", ["", "shop", "https://shop.example", "shop.example:443"])
def test_an_invalid_domain_is_rejected_for_a_project(customer: Customer, written: str) -> None:
    before = rows("SELECT COUNT(*) FROM projects")
    with pytest.raises(ValidationFailed) as refused:
        projects.add_project("Shop", customer.account_id, NOW, written)
    expected = FieldProblem("/shop_domain", "invalid_shop_domain", "Not a valid shop domain.")
    assert refused.value.problems == (expected,)
    assert rows("SELECT COUNT(*) FROM projects") == before
