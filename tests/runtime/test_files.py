"""Files are replaced as a whole, and only regular files are replaced."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from runtime.files import replacing

ROOT: Final = Path(__file__).parents[2]


def write(path: Path) -> None:
    with replacing(path) as file:
        file.write("new")


def test_new_and_existing_regular_files_are_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for _ in range(2):
        write(path)
        assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_fifos_folders_and_symbolic_links_are_not_replaced(tmp_path: Path) -> None:
    fifo, link, dangling, theirs = (tmp_path / name for name in ("fifo", "link", "dangling", "theirs"))
    os.mkfifo(fifo)
    theirs.write_text("theirs")
    link.symlink_to(theirs)
    dangling.symlink_to(tmp_path / "absent")
    before = {each.name: each.lstat().st_ino for each in tmp_path.iterdir()}
    for path, reason in ((fifo, "not a regular file"), (tmp_path, "not a regular file"), (link, "symbolic link")):
        with pytest.raises(OSError, match=f"it is (a )?{reason}"):
            write(path)
    with pytest.raises(OSError, match="symbolic link"):
        write(dangling)
    assert {each.name: each.lstat().st_ino for each in tmp_path.iterdir()} == before
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    assert theirs.read_text() == "theirs"


def test_concurrent_writes_leave_one_complete_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as first:
        first.write("first, ")
        with replacing(path) as second:
            second.write("second")
        assert path.read_text() == "second"
        first.write("and complete")
    assert path.read_text() == "first, and complete"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_git_ignores_the_draft_of_the_env_file(tmp_path: Path) -> None:
    assert "/.env.*" in (ROOT / ".gitignore").read_text().splitlines()
    with replacing(tmp_path / ".env"):
        [draft] = tmp_path.iterdir()
        assert draft.match(".env.*")


def test_a_failed_write_keeps_the_file_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with suppress(ZeroDivisionError), replacing(path) as file:
        file.write(f"half {1 / 0}")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file", "old")]
    write(path)
    assert path.stat().st_mode & 0o177777 == 0o100600
