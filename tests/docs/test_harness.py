"""What holds the documents finds what is wrong with them, by page and line."""

from pathlib import Path
from typing import Final

import pytest

from tests.docs.named import wrong_in
from tests.docs.pasting import CHECKOUT, Installation, Reader, Wrong
from tests.docs.snippets import Snippet, Use, difference, page_of, problem_with

FENCE: Final = "```"


def block(language: str, text: str, comment: str = "") -> str:
    word, _, name = comment.partition(": ")
    told = {"file": f"Save this as `{name}`:\n", "in another terminal": "In another terminal:\n"}.get(word, "")
    return told + bare(language, text, comment)


def bare(language: str, text: str, comment: str = "") -> str:
    """A block that nothing is said of where a reader sees it."""
    above = f"<!-- {comment} -->\n" if comment else ""
    return f"{above}{FENCE}{language}\n{text}\n{FENCE}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        # said rightly
        (block("sh", "true"), None),
        (block("json", "{}", "prints"), None),
        (block("php", "<?php", "file: a.php"), None),
        (block("sh", "sleep 1", "in another terminal"), None),
        (block("sh", "reboot", "not run: ends the day"), None),
        # a comment that belongs to something else
        (f"<!-- nothing of ours -->\n\nwords\n\n{block('sh', 'true')}", None),
        # said wrongly, or not at all
        (block("", "true"), "p.md:1: a block without a language"),
        (block("shell", "true"), "p.md:1: nobody knows the language 'shell'"),
        (block("php", "<?php"), "p.md:1: php has to say what it is for: file, or not run and why"),
        (block("sh", "true", "not run"), "p.md:2: nobody knows the comment 'not run'"),
        (block("sh", "true", "prints: x"), "p.md:2: nobody knows the comment 'prints: x'"),
        (block("sh", "true", "runs on Sundays"), "p.md:2: nobody knows the comment 'runs on Sundays'"),
        (block("sh", "true", "prints"), "p.md:2: sh has to say what it is for: file, or not run and why"),
        # what readers are not told
        (bare("php", "<?php", "file: a.php"), "p.md:2: nobody is told to save this as `a.php`"),
        (block("sh", "true") + "\n" + bare("json", "{}", "file: a"), "p.md:6: nobody is told to save this as `a`"),
        (bare("sh", "sleep 1", "in another terminal"), "p.md:2: nobody is told that this needs a terminal of its own"),
        ("words\n\n    indented\n", "p.md:3: a block without a fence"),
        (f"1. a step\n\n   {FENCE}\n   true\n   {FENCE}\n", "p.md:3: a block without a language"),
    ],
)
def test_a_block_has_to_say_what_it_is(text: str, problem: str | None) -> None:
    page = page_of("p.md", text)
    assert page.problems == (() if problem is None else (problem,))
    assert bool(page.snippets) == (problem is None or "nobody is told" in problem)


@pytest.mark.parametrize(
    ("language", "right", "wrong"),
    [
        ("sh", "for each in a; do true; done", "for each in a; do"),
        ("python", "print()", "print("),
        ("json", '{"a": 1}', "{'a': 1}"),
        ("yaml", "a: 1", "a: [1"),
        ("ini", "A=1\n# b", "A"),
        ("sql", "DELETE FROM a;", "DELETE FROM a"),
        ("http", "POST /api HTTP/1.1\nAccept: a/b\n\n{", "POST\nAccept"),
    ],
)
def test_a_block_has_to_be_in_its_language(language: str, right: str, wrong: str) -> None:
    assert problem_with(page_of("p.md", block(language, right, "not run: x")).snippets[0]) is None
    told = problem_with(page_of("p.md", block(language, wrong, "not run: x")).snippets[0])
    assert told is not None
    assert told.startswith(f"p.md:2: no {language}: ")


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("bin/riskrelay token create --user a", []),
        ("TOKEN=$(bin/riskrelay token create --user a)", []),
        ("cd /srv/riskrelay && bin/riskrelay backup /srv/backups --keep 14 --json >/dev/null", []),
        ("install -o riskrelay -g riskrelay -m 0700 /etc/riskrelay /var/lib/riskrelay", []),
        ("bin/riskrelay target limit ID --max-per-minute $PACE", []),
        ("make test ARGS='-k x'; make -n check", []),
        (".venv/bin/python -m bench --quick", []),
        ("python3 -m json.tool", []),
        ("bin/riskrelay token make", ["p.md:1: no command: token make"]),
        ("docker exec a /srv/riskrelay/bin/riskrelay sweep --fast", ["p.md:1: sweep --fast: No such option '--fast'."]),
        ("bin/riskrelay target show", ["p.md:1: target show: Missing argument 'TARGET_ID'."]),
        ("a && make tset", ["p.md:1: no make target: tset"]),
        ("python -m bench.nothing", ["p.md:1: no module: bench.nothing"]),
        ("python -m soak --weeks 2", ["p.md:1: soak has no --weeks"]),
    ],
)
def test_a_command_in_a_block_has_to_be_there(command: str, wrong: list[str]) -> None:
    assert wrong_in(Snippet("p.md", 1, "sh", command, Use.NOT_RUN)) == wrong


@pytest.mark.parametrize(
    ("language", "shown", "printed", "is_same"),
    [
        ("text", "a\nb", "a\nb\n", True),
        ("text", "a …\n…\nz", "a 1\nb\nc\nz\n", True),
        # three dots of the page match no further line by themselves
        ("text", "a …", "a 1\nb\n", False),
        ("text", "a.c", "abc\n", False),
        ("json", '{"a": 1, "b": null}', '{"b": null, "a": 7.5}', True),
        ("json", '{"a": "…"}', '{"a": [1]}', True),
        ("json", '{"a": 1, "…": "…"}', '{"a": 1, "b": 2}', True),
        ("json", '[{"a": 1}]', '[{"a": 2}, {"b": 1}]', True),
        ("json", '{"a": 1}', '{"a": "1"}', False),
        ("json", '{"a": 1}', '{"a": true}', False),
        ("json", '{"a": 1}', '{"a": 1, "b": 2}', False),
        ("json", '{"a": 1, "b": 2}', '{"a": 1}', False),
        ("json", '{"a": [{"b": 1}]}', '{"a": [{"c": 1}]}', False),
        ("json", "{}", "nothing", False),
    ],
)
def test_what_was_printed_is_compared(language: str, shown: str, printed: str, is_same: bool) -> None:
    snippet = Snippet("p.md", 1, language, f"{shown}\n", Use.PRINTS)
    assert (difference(snippet, printed) is None) == is_same


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    """One that nobody talks to."""
    folder = tmp_path / "installation"
    (folder / "data").mkdir(parents=True)
    (folder / ".env").write_text("SECRET=abc\n")
    return Installation(folder, 8123, {"PATH": "/usr/bin:/bin"})


def paste(text: str, installation: Installation, folder: Path) -> Reader:
    with Reader(page_of("p.md", text), installation, folder) as reader:
        reader.paste_all()
    return reader


def test_a_page_is_pasted_in_order_into_one_shell(installation: Installation, tmp_path: Path) -> None:
    page = [
        block("sh", ". ./.env\nHELD=$SECRET"),
        block("python", "never run here"),
        block("ini", "a=8000,80001", "file: settings/some.ini"),
        block("sh", 'echo "$HELD $(cat settings/some.ini) 8000"'),
        block("text", "abc a=8000,80001 8000", "prints"),
    ]
    reader = paste("\nwords\n\n".join(page), installation, tmp_path / "a page")
    assert (reader.folder / "settings" / "some.ini").read_text() == "a=8123,80001\n"
    assert {path.name for path in reader.folder.iterdir()} >= {*CHECKOUT, ".env", "data"}


LISTEN: Final = (
    "python3 -u -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 9001)); print(9001); time.sleep(60)'"
)


def test_another_terminal_is_waited_for_and_ends_with_the_page(installation: Installation, tmp_path: Path) -> None:
    page = [
        block("sh", LISTEN, "in another terminal"),
        block("text", "9001", "prints"),
        block("sh", "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 9001))'"),
    ]
    reader = paste("\n".join(page), installation, tmp_path / "a page")
    with pytest.raises(Wrong, match=r"^p.md:1: exit code 1\n(.*\n)+.*Connection refused"):
        paste(
            block("sh", reader.with_ports("python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 9001))'")),
            installation,
            tmp_path / "another",
        )


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("\n\n" + block("sh", "true\nfalse\necho on"), r"^p.md:3: exit code 1\np.md:5: false\n"),
        (block("sh", "true\n\nno-such-command"), r"p.md:4: no-such-command: command not found"),
        (block("sh", "true | false | true"), "exit code 1"),
        (block("sh", 'echo "$UNSET"'), "p.md:2: UNSET: unbound variable"),
        (block("sh", "exit 0"), "^p.md:1: exit code 0"),
        (block("sh", "echo a") + "\n" + block("text", "b", "prints"), r"^p.md:6: this was printed instead:\na\n"),
        (block("text", "b", "prints"), "^p.md:2: this was printed instead"),
        (block("sh", "echo gone; exit 3", "in another terminal"), "^p.md:3: no port of 9000 to 9009 is listened at: gone"),
        (block("text", "a", "file: examples/new"), "^p.md:3: examples/new would be written into the checkout"),
        (block("text", "a", "file: ../new"), "^p.md:3: ../new would be written into the checkout"),
    ],
)
def test_a_block_that_does_not_do_as_told_is_named(page: str, told: str, installation: Installation, tmp_path: Path) -> None:
    with pytest.raises(Wrong, match=told):
        paste(page, installation, tmp_path / "a page")
