"""HTML pages and database dumps in text: as programs write them, and text of manuals and validators that describes them."""

import json
from typing import Final

import pytest

from schemas.content_policy.detectors.document_patterns import is_dump, is_page

PAGE: Final = (
    '<!DOCTYPE html>\r\n<html lang="de">\n\t<head>\n\t<title>Shop</title>\n</head>\n'
    '<body class="shop">\n<p>Hello</p>\n</body>\n</html>'
)
DUMPS: Final = [
    # SQL Server: names in brackets, no INTO, one statement for each row.
    "INSERT [dbo].[Users] ([Id], [Name]) VALUES (1, N'Ann')\nGO\nINSERT [dbo].[Users] ([Id], [Name]) VALUES (2, N'Bob')\nGO",
    "CREATE TABLE [dbo].[Users](\n\t[Id] [int] NOT NULL)\nGO\nINSERT [dbo].[Users] ([Id], [Name]) VALUES (1, N'Ann')",
    # Several rows; the first has brackets in a text or a call, quotes in a text, or a long text.
    "INSERT INTO users (id,name,phone) VALUES (1,'Ann','(555) 625-1199'),(2,'Bob','(555) 625-1200');",
    'INSERT INTO users VALUES (1,"a) b"),(2,"c");',
    "INSERT INTO users VALUES (1,NOW(),'a'),(2,NOW(),'b');",
    "INSERT INTO users VALUES (1,'it''s (a)'),(2,'b');",
    r"INSERT INTO users VALUES (1,'it\'s (a)'),(2,'b');",
    "INSERT INTO posts VALUES (1,'long'),\n(2,'b');".replace("long", "x " * 1500),
    "INSERT INTO posts VALUES (1,'long (long'),\n(2,'b');".replace("long", "x " * 1500),
    # Forms of table names.
    "INSERT INTO `my-shop`.`users` VALUES (1,'a'),(2,'b')",
    "INSERT INTO `my shop` . `users` VALUES (1,'a'),(2,'b')",
    'INSERT INTO "public".users VALUES (1),(2)',
    r"INSERT INTO \"users\" VALUES (1),(2)",
    "INSERT INTO a.b.c.d VALUES (1),(2)",
    "CREATE TABLE `my-shop`.`users` (id int);\nINSERT INTO `my-shop`.`users` VALUES (1);",
    "REPLACE INTO `users` VALUES (1,'a'),(2,'b');",
    "REPLACE INTO users VALUES (1);\nREPLACE INTO users VALUES (2);",
    "INSERT IGNORE INTO users VALUES (1),(2);",
    # An apostrophe in an earlier statement, or in another one of several joined texts.
    "INSERT INTO users VALUES (1, it's)\nINSERT INTO users VALUES (1,'a'),(2,'b')",
    "INSERT INTO users VALUES (1, it's\n\0\nINSERT INTO users VALUES (1,'(a)'),(2,'b')",
]
NO_DUMPS: Final = [
    "INSERT INTO users (id) VALUES (1);",
    "INSERT INTO users (id, note) VALUES (NOW(), '1), (2');",
    "INSERT [dbo].[Users] ([Id]) VALUES (1)",
    "REPLACE INTO users VALUES (1);",
    "CREATE TABLE [dbo].[Users]([Id] [int] NOT NULL)",
    "First insert the values (a, b), then insert other values (c, d).",
    "Error near 'INSERT INTO users VALUES (1)', (line 2)",
]


@pytest.mark.parametrize("text", DUMPS)
def test_a_table_with_rows_or_several_rows_are_a_dump(text: str) -> None:
    assert is_dump(text)


@pytest.mark.parametrize("text", NO_DUMPS)
def test_a_single_row_or_prose_is_no_dump(text: str) -> None:
    assert not is_dump(text)


@pytest.mark.parametrize("page", [PAGE, PAGE.partition("\n")[2], PAGE[PAGE.index("<title>") :], PAGE.replace("\n", "")])
def test_a_page_is_found_with_its_lines_ends_written_out(page: str) -> None:
    once = json.dumps({"html": page})
    assert is_page(page)
    assert is_page(once)
    assert is_page(json.dumps({"body": once}))
    assert is_page(once.replace("/", "\\/"))
    assert is_page(f"element.innerHTML = {json.dumps(page)};")


@pytest.mark.parametrize(
    "text",
    [
        r"<!DOCTYPE html>\n<html>",
        r"<html>\n<head>\n<title>Shop</title>",
        r"The <\/head> ends the head, <body> follows.",
        r"Write <!DOCTYPE html>\n before <html>.",
        r"<html>\x<body>Hello",
    ],
)
def test_an_extract_or_prose_with_line_ends_written_out_is_no_page(text: str) -> None:
    assert not is_page(text)
