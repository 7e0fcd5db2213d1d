"""Who may change a settings file: every folder and symbolic link in its path matters."""

import grp
import os
import pwd
from pathlib import Path

import pytest

from schemas.settings.file_trust import trust_problem, trusted_users

STRANGER = 4711


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A private file in `folder`, which is in the test's private folder."""
    (tmp_path / "folder").mkdir(0o755)
    path = tmp_path / "folder" / ".env"
    path.touch(0o600)
    return path


def test_a_private_file_in_private_folders_is_trusted(file: Path) -> None:
    for mode in (0o600, 0o644, 0o640):
        file.chmod(mode)
        assert trust_problem(file, trusted_users()) is None


@pytest.mark.parametrize("mode", [0o602, 0o666, 0o777])
def test_a_file_that_others_may_write_is_not_trusted(file: Path, mode: int) -> None:
    file.chmod(mode)
    problem = trust_problem(file, trusted_users())
    assert problem is not None
    assert problem.message == f"Other users can change it: {file} has mode {mode:04o}."
    assert problem.command == f"chmod go-w {file}"


def test_a_folder_in_which_others_may_replace_entries_is_not_trusted_unless_it_is_sticky(file: Path) -> None:
    for folder in (file.parent, file.parent.parent):
        folder.chmod(0o777)
        problem = trust_problem(file, trusted_users())
        assert problem is not None
        assert problem.command == f"chmod go-w {folder}"
        folder.chmod(0o1777)
        assert trust_problem(file, trusted_users()) is None
        folder.chmod(0o755)


def test_a_file_or_link_of_another_user_is_not_trusted_in_a_sticky_folder_either(file: Path, tmp_path: Path) -> None:
    file.parent.chmod(0o1777)
    link = tmp_path / "folder" / "link"
    link.symlink_to(file)
    if os.geteuid() == 0:
        os.chown(file, STRANGER, STRANGER)
    owner = file.stat().st_uid
    for path in (file, link):
        problem = trust_problem(path, {0})
        assert problem is not None
        assert "belongs to" in problem.message
        assert problem.command.startswith("chown -h ")
        assert trust_problem(path, {0, os.geteuid(), owner}) is None
    if os.geteuid() == 0:
        os.chown(file, 0, 0)
        os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
        assert str(link) in str(trust_problem(link, {0}))
        assert trust_problem(file, {0}) is None


def test_every_folder_on_the_path_of_a_link_counts(file: Path, tmp_path: Path) -> None:
    shared, private = tmp_path / "shared", tmp_path / "private"
    shared.mkdir()
    private.mkdir()
    (shared / "first").symlink_to("../folder/.env")
    (private / "second").symlink_to(shared / "first")
    (tmp_path / "way").symlink_to(private, target_is_directory=True)
    path = tmp_path / "way" / "second"
    assert trust_problem(path, trusted_users()) is None
    for folder in (shared, private, file.parent):
        folder.chmod(0o777)
        assert f"{folder} has mode 0777" in str(trust_problem(path, trusted_users()))
        folder.chmod(0o755)
    assert trust_problem(path, trusted_users()) is None


def test_only_the_owners_own_group_may_write(file: Path) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    own = grp.getgrgid(os.getegid())
    file.chmod(0o660)
    is_own = own.gr_name == me and set(own.gr_mem) <= {me}
    assert (trust_problem(file, trusted_users()) is None) == is_own
    if os.geteuid() == 0:
        os.chown(file, 0, STRANGER)
        assert "has mode 0660" in str(trust_problem(file, trusted_users()))


def test_the_suggested_command_quotes_the_path(tmp_path: Path) -> None:
    path = tmp_path / "it's mine; rm"
    path.touch()
    path.chmod(0o666)
    problem = trust_problem(path, trusted_users())
    assert problem is not None
    assert os.system(problem.command) == 0  # noqa: S605 - the quoting is tested
    assert trust_problem(path, trusted_users()) is None


def test_a_missing_part_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        trust_problem(tmp_path / "none" / ".env", trusted_users())
