"""Files that are replaced as a whole: nothing but a regular file is."""

import os
import stat
from pathlib import Path

import pytest

from runtime.files import replacing


def write(path: Path) -> None:
    with replacing(path) as file:
        file.write("new")


def test_a_new_file_and_a_regular_one_are_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for _ in range(2):
        write(path)
        assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_fifo_a_folder_and_a_symbolic_link_stay_as_they_are(tmp_path: Path) -> None:
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
