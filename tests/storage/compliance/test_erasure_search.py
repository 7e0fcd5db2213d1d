"""The search of an erasure reads every row that may mention the subject, in whatever case the letters are written."""

from typing import Final

import psycopg
import pytest

from schemas.compliance.requests import Subject
from schemas.compliance.subject_matching import Mentions
from storage.compliance import erasure
from storage.compliance.erasure import ERASABLE_TABLES
from storage.db import schema_version
from storage.db.engine import close_database, connection, execute, open_database, rows
from storage.db.models import ExportRow
from tests.support.factories import Customer, make_customer, make_exports
from tests.support.servers.redis_and_postgres import PostgresServer

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
def test_an_email_address_is_found_in_any_letter_case_and_unicode_form(customer: Customer, written: str) -> None:
    execute("UPDATE projects SET shop_domain = ?", (SHOP,))
    named, _ = make_exports(customer, 2)
    [[ticket]] = rows("SELECT ticket FROM exports WHERE id = ?", (named,))
    execute("UPDATE exports SET ticket = ? WHERE id = ?", (ticket.replace('"title":"', f'"title":"{written} '), named))
    [exports] = [table for table in ERASABLE_TABLES if table.model is ExportRow]
    found = [match.id for part in erasure.search(exports, SHOP, Mentions(Subject(email=EMAIL))) for match in part]
    assert found == [named]


def test_a_search_covers_all_data_of_a_shop(customer: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "SLICE", 2)
    monkeypatch.setattr(erasure, "_IDS_AT_ONCE", 4)
    execute("UPDATE projects SET shop_domain = ?", (SHOP,))
    ids = make_exports(customer, 11)
    execute('UPDATE exports SET ticket = REPLACE(ticket, \'"title":"\', \'"title":"john.doe@example.com \')')
    [exports] = [table for table in ERASABLE_TABLES if table.model is ExportRow]
    parts = list(erasure.search(exports, SHOP, Mentions(Subject(email=EMAIL))))
    assert [len(part) for part in parts] == [2, 2, 2, 2, 2, 1]
    assert [match.id for part in parts for match in part] == ids
    assert [each for part in erasure.ids_of_shop(exports, SHOP) for each in part] == ids


def test_letters_are_compared_as_in_english_whatever_the_language_of_a_database(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url, autocommit=True) as session:
        session.execute("CREATE DATABASE turkish TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR' ENCODING 'UTF8'")
    url = f"{postgres_server.url.rpartition('/')[0]}/turkish"
    open_database(url)
    with connection():
        schema_version.migrate()
        customer = make_customer()
        execute("UPDATE projects SET shop_domain = ?", (SHOP,))
        [export_id] = make_exports(customer, 1)
        execute('UPDATE exports SET ticket = REPLACE(ticket, \'"title":"\', \'"title":"MARIA.SMITH@GMAIL.COM \')')
        [exports] = [table for table in ERASABLE_TABLES if table.model is ExportRow]
        mentions = Mentions(Subject(email="maria.smith@gmail.com"))
        assert [match.id for part in erasure.search(exports, SHOP, mentions) for match in part] == [export_id]
    close_database()
