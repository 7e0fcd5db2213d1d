"""Arguments that every command rejects: bytes that are not UTF-8, and names that exceed the limits of the API."""

from pathlib import Path

import pytest

from tests.bin.test_commands import shell_in
from tests.support.processes.shell import Shell

#: The byte 0xff in an argument, as Python decodes it.
BYTES = "\udcff"
LONG = "x" * 201


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    made = shell_in(tmp_path)
    assert made.json("account", "add", "First")["id"] == 1
    assert made.json("project", "add", "Shop", "--account", "1")["id"] == 1
    assert made.json("user", "add", "ada@example.com", "--account", "1")["id"] == 1
    return made


@pytest.mark.parametrize(
    "words", [("listen", "--port", "1", "--delay", "inf"), ("listen", "--port", "1", "--delay", "1e300")]
)
def test_an_enormous_delay_is_wrong_usage(shell: Shell, words: tuple[str, ...]) -> None:
    result = shell.run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is not in the range 0<=x<=86400" in result.stderr


def test_the_path_of_a_file_may_be_any_bytes(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / BYTES
    for words in (
        ("audit", "export"),
        ("audit", "verify"),
        ("report", "--project", "1", "--format", "csv", "--output"),
        ("compliance", "export"),
    ):
        assert shell.run(*words, str(path)).exit_code == 0
    assert path.read_text().startswith('{"riskrelay":"redactions"')
    assert r"\udcff already exists" in shell.refused("backup", str(path))


@pytest.mark.parametrize(
    ("name", "reason"), [("", "is empty"), (" \t", "is empty"), (LONG, "exceeds its maximum length: 200 characters.")]
)
def test_names_have_the_same_length_limits_as_in_the_api(shell: Shell, name: str, reason: str) -> None:
    for words in (("account",), ("project", "--account", "1"), ("report", "--project", "1")):
        result = shell.run(words[0], "add", name, *words[1:])
        assert (result.exit_code, result.stdout) == (2, "")
        assert reason in result.stderr
    assert len(shell.json("account", "list")) == len(shell.json("project", "list")) == 1


def test_a_token_name_may_be_empty_and_has_a_maximum_length(shell: Shell) -> None:
    words = ("token", "create", "--user", "ada@example.com", "--name")
    result = shell.run(*words, LONG)
    assert (result.exit_code, "exceeds its maximum length: 200" in result.stderr) == (2, True)
    for name in ("", LONG[1:]):
        assert shell.json(*words, name)["name"] == name


def test_a_name_with_forbidden_content_is_refused_as_in_the_api_and_not_repeated(shell: Shell) -> None:
    password = "hunter2secret"
    for words in (
        ("account", "add"),
        ("project", "add", "--account", "1"),
        ("report", "add", "--project", "1"),
        ("token", "create", "--user", "ada@example.com", "--name"),
    ):
        result = shell.run(*words, f"password={password}")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Contains a password, key or secret with its value; remove it." in result.stderr
        assert password not in result.stderr
    assert [len(shell.json(each, "list")) for each in ("account", "project", "token")] == [1, 1, 0]
