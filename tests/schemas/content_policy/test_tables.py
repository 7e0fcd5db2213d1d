"""Tables in text: which columns count, which rows are read, and the minimum length of each kind of hash."""

from typing import Final

import pytest

from schemas.content_policy.detectors.tables import has_credential_table, has_customer_table, has_password_hash

TOKEN: Final = "aB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zC" * 8
HEX: Final = "0b1d3f5a7c9e2048"
VALUES: Final = {"a name": "Ann Example", "a total": "12.50", "an address": "somewhere"}
PEOPLE: Final = {
    "a name": "name first_name firstname last_name full_name surname Vorname Nachname Kunde",
    "a total": "Betrag Summe Gesamtbetrag montant total",
    "an address": "phone telephone Telefon mobile city zip postcode PLZ Strasse Anschrift",
}
PASSWORDS: Final = (
    "pass password passwd passwort pwd user_pass userpass db_password login_pwd password_hash pass_digest passwd_md5"
    " pwd_sha1 User_Pass"
)
KEYS: Final = "secret client_secret api_key access_token refresh_token auth_token private_key session_id"
#: Hashes of the minimum length.
HASHES: Final = [
    *(f"$2{kind}$10${TOKEN[:53]}" for kind in "abxy"),
    *(f"$argon2{kind}$v=19$m=1,t=3$aB3dE5gH${TOKEN[:16]}" for kind in ("id", "i", "d")),
    f"$argon2id$m=1,t=3$aB3dE5gH${TOKEN[:16]}",
    *(f"${kind}${TOKEN[:31]}" for kind in "PH"),
    f"$S${TOKEN[:52]}",
    *(f"${kind}$aB3dE5gH${TOKEN[:22]}" for kind in ("1", "5", "6", "7", "y", "gy", "apr1", "sha1", "md5")),
    f"$6$rounds=5000$aB3dE5gH${TOKEN[:22]}",
    f"$7$a1$aB3dE5gH${TOKEN[:22]}",
    f"pbkdf2_sha256$260000$aB3dE5${TOKEN[:27]}",
    *(f"{{{kind}}}{TOKEN[:22]}" for kind in ("SHA", "SSHA", "SHA256", "SSHA512", "MD5", "SMD5")),
]


@pytest.mark.parametrize(("kind", "column"), [(kind, each) for kind in PEOPLE for each in PEOPLE[kind].split()])
def test_a_column_of_people_beside_an_address_makes_a_table_of_customers(kind: str, column: str) -> None:
    for name in (column, column.upper(), column.replace("_", " ")):
        assert has_customer_table(f"{name};E-Mail\n{VALUES[kind]};ann@shop.example")
        assert not has_customer_table(f"{name}x;E-Mail\n{VALUES[kind]};ann@shop.example")


@pytest.mark.parametrize(
    "table",
    [
        "name,email\n12,ann@shop.example",  # not a person's name
        "total,email\n12.50,required",  # no email address
        "name,city\nHome page,London",  # not a person: a title and a city
        "email,contact_email\nann@shop.example,bob@shop.example",  # one part of a customer twice
        "name,email\n,ann@shop.example",
        "name,email",
        "email\nann@shop.example",
        "name?,email\nAnn Example,ann@shop.example",  # not the name of a column
    ],
)
def test_a_table_without_two_parts_of_a_customer_passes(table: str) -> None:
    assert not has_customer_table(table)


@pytest.mark.parametrize(
    "person",
    [
        "customer_name,total,email\nAnn Example,12.50,none",
        "customer_address,total\n1 High Street,12.50",
        "email,total\na@b.example,12.50",
    ],
)
def test_a_part_of_a_person_and_another_make_a_table_of_orders(person: str) -> None:
    assert has_customer_table(person)


@pytest.mark.parametrize("items", ["sku", "qty", "quantity", "price", "product_id"])
def test_purchased_items_are_a_part_of_a_table_of_orders(items: str) -> None:
    assert has_customer_table(f"{items},email\nA-1,ann@shop.example")


@pytest.mark.parametrize("column", PASSWORDS.split())
def test_a_column_of_passwords_with_a_value_is_a_table_of_credentials(column: str) -> None:
    assert has_credential_table(f"login;{column}\nann;abc1")
    assert has_credential_table(f"login;{column.replace('_', ' ')}\nann;abc1")
    assert not has_credential_table(f"login;{column}\nann;ab1")
    assert not has_credential_table(f"login;{column}x\nann;abc1")


@pytest.mark.parametrize("column", KEYS.split())
def test_a_column_of_keys_with_a_value_is_a_table_of_credentials(column: str) -> None:
    assert has_credential_table(f"mail,{column}\nann,8f14e45f")
    assert not has_credential_table(f"mail,{column}\nann,8f14e45")
    assert not has_credential_table(f"mail,{column}\nann,abcdefgh")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_columns_are_separated_by_any_of_four_characters(separator: str) -> None:
    assert has_credential_table(f"login{separator}password\nann{separator}hunter22")


@pytest.mark.parametrize("separator", [":", " ", "/"])
def test_columns_are_separated_by_no_other_character(separator: str) -> None:
    assert not has_credential_table(f"login{separator}password\nann{separator}hunter22")


def test_bars_at_the_ends_of_a_line_are_not_part_of_a_cell() -> None:
    assert has_credential_table("|api_key|login|\n|X1f14e45|ann|")
    assert has_credential_table("|login|api_key|\n|ann|1f14e45X|")


def test_a_row_has_at_least_as_many_columns_as_its_head() -> None:
    assert not has_credential_table("password;login;note\nhunter22;ann")
    assert has_credential_table("password;login;note\nhunter22;ann;a;b")
    assert has_credential_table("password;note\n\"hunter22\";'a;b'")
    assert has_credential_table('note;password\n"a;b";hunter22')
    assert has_credential_table("| login | password |\n|---|---|\n| ann | hunter22 |")


@pytest.mark.parametrize(("rows", "is_found"), [(0, True), (3, True), (4, False)])
def test_four_rows_below_a_head_are_read(rows: int, is_found: bool) -> None:
    between = "ann;none\n" * rows
    assert has_credential_table(f"login;password\n{between}bob;hunter22") is is_found


@pytest.mark.parametrize(("columns", "is_found"), [(99, True), (100, True), (101, False)])
def test_a_head_has_a_hundred_columns_at_most(columns: int, is_found: bool) -> None:
    head, row = ";".join(["a"] * (columns - 1)), ";".join(["b"] * (columns - 1))
    assert has_credential_table(f"password;{head}\nhunter22;{row}") is is_found


@pytest.mark.parametrize(("characters", "is_found"), [(4000, True), (4001, False)])
def test_a_line_of_more_than_4000_characters_is_not_read_as_a_row(characters: int, is_found: bool) -> None:
    row = "hunter22;".ljust(characters, "x")
    assert has_credential_table(f"password;note\n{row}") is is_found
    assert has_credential_table(f"password;note\n{row}\nhunter22;a")


@pytest.mark.parametrize("separator", ["\n", "\n\n\n\n\n", "\n\0\n"])
def test_a_table_is_found_among_many_lines_that_look_like_heads(separator: str) -> None:
    others = ["Fields email, phone and street have no label", "Password; note"] * 300
    for table, has_table in (
        ("login;password\nann;hunter22", has_credential_table),
        ("customer_name,email,total\nAnn Example,ann@shop.example,49.90", has_customer_table),
    ):
        assert has_table(separator.join([*others, table]))
        assert has_table(separator.join([table, *others]))
        assert not has_table(separator.join(others))


@pytest.mark.parametrize("text", HASHES)
def test_the_shortest_hash_of_each_kind_is_found_and_a_shorter_text_is_not(text: str) -> None:
    assert has_password_hash(f"ann:{text}")
    assert not has_password_hash(f"ann:{text[:-1]}")
