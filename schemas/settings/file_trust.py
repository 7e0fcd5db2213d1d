"""Finds the reason why another user can change a file: the owner or mode of the file, or of a folder or link on its path.

Trusted are root, the current user and the owner of the installation, who could change the code as well. Group write access
counts unless the group is the owner's own: same name, no other members. Access control lists are not read.
"""

import grp
import os
import pwd
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

#: The folder that contains `bin/riskrelay`.
INSTALLATION: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class TrustProblem:
    """Why another user can change a file, and the command that prevents it."""

    message: str
    command: str


def trusted_users() -> frozenset[int]:
    """Return the ids of root, the current user and the owner of the installation."""
    return frozenset({0, os.geteuid(), INSTALLATION.stat().st_uid})


def trust_problem(path: Path, trusted: Collection[int]) -> TrustProblem | None:
    """Return the first part of an absolute path that a user other than the `trusted` ones can change, or None.

    Raises OSError.
    """
    for part in _parts(path):
        found = part.lstat()
        if found.st_uid not in trusted:
            owner = _user_name(found.st_uid)
            return TrustProblem(
                f"User {owner} can change it: {part} belongs to {owner}.",
                f"chown -h {_user_name(os.geteuid())} {quote(str(part))}",
            )
        if not stat.S_ISLNK(found.st_mode) and _is_writable_by_others(found):
            mode = stat.S_IMODE(found.st_mode)
            return TrustProblem(f"Other users can change it: {part} has mode {mode:04o}.", f"chmod go-w {quote(str(part))}")
    return None


def _parts(path: Path) -> Iterator[Path]:
    """Yield every folder and symbolic link that leads to `path`, then `path` itself."""
    in_real_folder = path.parent.resolve() / path.name
    if in_real_folder != path:
        yield from _parts(in_real_folder)
    elif path.is_symlink():
        yield from _parts(path.parent / path.readlink())
    yield from reversed(path.parents)
    yield path


def _is_writable_by_others(found: os.stat_result) -> bool:
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        # Only the owner of an entry can replace it, and the entry is checked as well.
        return False
    return bool(found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(found)))


def _is_own_group(found: os.stat_result) -> bool:
    try:
        group, owner = grp.getgrgid(found.st_gid), pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        return False
    return group.gr_name == owner and set(group.gr_mem) <= {owner}


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
