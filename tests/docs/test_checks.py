"""The documentation checks find errors and report page and line."""

from pathlib import Path
from typing import Final

import pytest

from tests.docs.names import errors_in_block
from tests.docs.pasting import CHECKOUT, PageError, PageRunner, RunningInstallation
from tests.docs.snippets import Snippet, Use, difference, page_of, problem_with

FENCE: Final = "```"


def block(language: str, text: str, comment: str = "") -> str:
    word, _, name = comment.partition(": ")
    above = {"file": f"Save this as `{name}`:\n", "in another terminal": "In another terminal:\n"}.get(word, "")
    return above + bare(language, text, comment)


def bare(language: str, text: str, comment: str = "") -> str:
    """Return a block without a visible text above it."""
    above = f"<!-- {comment} -->\n" if comment else ""
    return f"{above}{FENCE}{language}\n{text}\n{FENCE}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        # valid
        (block("sh", "true"), None),
        (block("json", "{}", "prints"), None),
        (block("php", "<?php", "file: a.php"), None),
        (block("sh", "sleep 1", "in another terminal"), None),
        (block("sh", "reboot", "not run: reboots"), None),
        # an unrelated comment
        (f"<!-- an unrelated comment -->\n\nwords\n\n{block('sh', 'true')}", None),
        # invalid or missing comments
        (block("", "true"), "p.md:1: a block without a language"),
        (block("shell", "true"), "p.md:1: unknown language 'shell'"),
        (block("php", "<?php"), "p.md:1: php needs a comment: file, or not run with a reason"),
        (block("sh", "true", "not run"), "p.md:2: unknown comment 'not run'"),
        (block("sh", "true", "prints: x"), "p.md:2: unknown comment 'prints: x'"),
        (block("sh", "true", "runs on Sundays"), "p.md:2: unknown comment 'runs on Sundays'"),
        (block("sh", "true", "prints"), "p.md:2: sh needs a comment: file, or not run with a reason"),
        # information missing in the text above
        (bare("php", "<?php", "file: a.php"), "p.md:2: the text above does not name the file `a.php`"),
        (block("sh", "true") + "\n" + bare("json", "{}", "file: a"), "p.md:6: the text above does not name the file `a`"),
        (bare("sh", "sleep 1", "in another terminal"), "p.md:2: the text above does not mention another terminal"),
        ("words\n\n    indented\n", "p.md:3: a block without a fence"),
        (f"1. a step\n\n   {FENCE}\n   true\n   {FENCE}\n", "p.md:3: a block without a language"),
    ],
)
def test_a_block_must_declare_its_use(text: str, problem: str | None) -> None:
    page = page_of("p.md", text)
    assert page.problems == (() if problem is None else (problem,))
    assert bool(page.snippets) == (problem is None or "the text above" in problem)


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
def test_a_block_must_be_valid_in_its_language(language: str, right: str, wrong: str) -> None:
    assert problem_with(page_of("p.md", block(language, right, "not run: x")).snippets[0]) is None
    problem = problem_with(page_of("p.md", block(language, wrong, "not run: x")).snippets[0])
    assert problem is not None
    assert problem.startswith(f"p.md:2: invalid {language}: ")


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
def test_a_command_in_a_block_must_exist(command: str, wrong: list[str]) -> None:
    assert errors_in_block(Snippet("p.md", 1, "sh", command, Use.NOT_RUN)) == wrong


@pytest.mark.parametrize(
    ("language", "shown", "printed", "is_same"),
    [
        ("text", "a\nb", "a\nb\n", True),
        ("text", "a …\n…\nz", "a 1\nb\nc\nz\n", True),
        # an ellipsis within a line matches no further line
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
def test_printed_output_is_compared_with_the_documented_output(
    language: str, shown: str, printed: str, is_same: bool
) -> None:
    snippet = Snippet("p.md", 1, language, f"{shown}\n", Use.PRINTS)
    assert (difference(snippet, printed) is None) == is_same


@pytest.fixture
def installation(tmp_path: Path) -> RunningInstallation:
    """An installation without a running service."""
    folder = tmp_path / "installation"
    (folder / "data").mkdir(parents=True)
    (folder / ".env").write_text("SECRET=abc\n")
    return RunningInstallation(folder, 8123, {"PATH": "/usr/bin:/bin"})


def paste(text: str, installation: RunningInstallation, folder: Path) -> PageRunner:
    with PageRunner(page_of("p.md", text), installation, folder) as reader:
        reader.paste_all()
    return reader


def test_a_page_is_pasted_in_order_into_one_shell(installation: RunningInstallation, tmp_path: Path) -> None:
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


def test_a_block_in_another_terminal_is_awaited_and_stops_with_the_page(
    installation: RunningInstallation, tmp_path: Path
) -> None:
    page = [
        block("sh", LISTEN, "in another terminal"),
        block("text", "9001", "prints"),
        block("sh", "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 9001))'"),
    ]
    reader = paste("\n".join(page), installation, tmp_path / "a page")
    with pytest.raises(PageError, match=r"^p.md:1: exit code 1\n(.*\n)+.*Connection refused"):
        paste(
            block("sh", reader.with_ports("python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 9001))'")),
            installation,
            tmp_path / "another",
        )


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("\n\n" + block("sh", "true\nfalse\necho on"), r"^p.md:3: exit code 1\np.md:5: false\n"),
        (block("sh", "true\n\nno-such-command"), r"p.md:4: no-such-command: command not found"),
        (block("sh", "true | false | true"), "exit code 1"),
        (block("sh", 'echo "$UNSET"'), "p.md:2: UNSET: unbound variable"),
        (block("sh", "exit 0"), "^p.md:1: exit code 0"),
        (block("sh", "echo a") + "\n" + block("text", "b", "prints"), r"^p.md:6: actual output:\na\n"),
        (block("text", "b", "prints"), "^p.md:2: actual output"),
        (block("sh", "echo gone; exit 3", "in another terminal"), "^p.md:3: no listener on ports 9000 to 9009: gone"),
        (block("text", "a", "file: examples/new"), "^p.md:3: examples/new would be written into the checkout"),
        (block("text", "a", "file: ../new"), "^p.md:3: ../new would be written into the checkout"),
    ],
)
def test_a_failing_block_is_reported_with_its_line(
    page: str, message: str, installation: RunningInstallation, tmp_path: Path
) -> None:
    with pytest.raises(PageError, match=message):
        paste(page, installation, tmp_path / "a page")
