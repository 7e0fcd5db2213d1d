"""The search of an erasure reads every row that may mention the subject, however its letters are written."""

from typing import Final

import pytest

from schemas.compliance.requests import Subject
from schemas.compliance.subject_matching import Mentions
from storage.compliance import erasure
from storage.compliance.erasure import ERASABLE_TABLES
from storage.db.engine import execute, rows
from storage.db.models import ExportRow
from tests.support.factories import Customer, make_exports

EMAIL: Final = "john.doe@example.com"
SHOP: Final = "shop.example.com"


@pytest.mark.parametrize(
    "written",
    [
        EMAIL,
        "".join(f"&#{ord(letter)};" for letter in EMAIL),
        "j&#111;%68n.d&#111;e&#64;e&#120;a&#109;ple.c&#111;m",
        "john.doe%40%65xample.com",
    ],
)
def test_an_address_is_found_however_its_letters_are_written(customer: Customer, written: str) -> None:
    execute("UPDATE projects SET shop_domain = ?", (SHOP,))
    named, _ = make_exports(customer, 2)
    [[ticket]] = rows("SELECT ticket FROM exports WHERE id = ?", (named,))
    execute("UPDATE exports SET ticket = ? WHERE id = ?", (ticket.replace('"title":"', f'"title":"{written} '), named))
    [exports] = [table for table in ERASABLE_TABLES if table.model is ExportRow]
    found = [match.id for part in erasure.search(exports, SHOP, Mentions(Subject(email=EMAIL))) for match in part]
    assert found == [named]
