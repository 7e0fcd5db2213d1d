"""Dumps of databases in text: the statements of each database, and what a manual says of them."""

from typing import Final

import pytest

from schemas.content_policy.detectors.document_patterns import is_dump

DUMPS: Final = [
    # SQL Server: names in brackets, no INTO, a statement a row.
    "INSERT [dbo].[Users] ([Id], [Name]) VALUES (1, N'Ann')\nGO\nINSERT [dbo].[Users] ([Id], [Name]) VALUES (2, N'Bob')\nGO",
    "CREATE TABLE [dbo].[Users](\n\t[Id] [int] NOT NULL)\nGO\nINSERT [dbo].[Users] ([Id], [Name]) VALUES (1, N'Ann')",
    # Several rows, the first with brackets in a text or a call, with quotes in a text, or long.
    "INSERT INTO users (id,name,phone) VALUES (1,'Ann','(555) 625-1199'),(2,'Bob','(555) 625-1200');",
    'INSERT INTO users VALUES (1,"a) b"),(2,"c");',
    "INSERT INTO users VALUES (1,NOW(),'a'),(2,NOW(),'b');",
    "INSERT INTO users VALUES (1,'it''s (a)'),(2,'b');",
    r"INSERT INTO users VALUES (1,'it\'s (a)'),(2,'b');",
    "INSERT INTO posts VALUES (1,'long'),\n(2,'b');".replace("long", "x " * 1500),
    "INSERT INTO posts VALUES (1,'long (long'),\n(2,'b');".replace("long", "x " * 1500),
    # The names of tables.
    "INSERT INTO `my-shop`.`users` VALUES (1,'a'),(2,'b')",
    "INSERT INTO `my shop` . `users` VALUES (1,'a'),(2,'b')",
    'INSERT INTO "public".users VALUES (1),(2)',
    r"INSERT INTO \"users\" VALUES (1),(2)",
    "INSERT INTO a.b.c.d VALUES (1),(2)",
    "CREATE TABLE `my-shop`.`users` (id int);\nINSERT INTO `my-shop`.`users` VALUES (1);",
    "REPLACE INTO `users` VALUES (1,'a'),(2,'b');",
    "REPLACE INTO users VALUES (1);\nREPLACE INTO users VALUES (2);",
    "INSERT IGNORE INTO users VALUES (1),(2);",
    # An apostrophe in an earlier statement, or in another of several joined texts.
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
