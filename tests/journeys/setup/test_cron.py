"""Run as by cron, every job of `bin/crontab.example` succeeds in both layouts and prints nothing that cron would mail."""

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes.checkouts import copy_checkout
from tests.support.processes.crontab import cron_jobs, cron_variables

WITHIN_S: Final = 60

Layout = Callable[[Path], Mapping[str, str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The user's home folder, in which cron starts commands."""
    home = tmp_path / "home"
    home.mkdir()
    return home


def in_a_checkout(folder: Path) -> Mapping[str, str]:
    """The paths that the comment in the crontab describes for a checkout."""
    checkout = copy_checkout(folder)
    return {"RISKRELAY": str(checkout / "bin" / "riskrelay"), "BACKUPS": str(checkout / "data" / "backups")}


def with_systemd(folder: Path) -> Mapping[str, str]:
    """The crontab's own paths, below `folder`. For the command, the current user appears to be riskrelay."""
    checkout = copy_checkout(folder)
    moved = {"/srv/riskrelay": f"{checkout}", "/etc/riskrelay": f"{folder}/etc", "/var/lib/riskrelay": f"{folder}/var"}
    command = (checkout / "deploy" / "systemd" / "riskrelay").read_text().replace("$(id -un)", "riskrelay")
    paths = cron_variables()
    for path, here in moved.items():
        command = command.replace(path, here.replace(" ", "\\ "))
        paths = {name: each.replace(path, here) for name, each in paths.items()}
    for name in ("etc", "var"):
        (folder / name).mkdir(mode=0o700)
    assert paths["RISKRELAY"] == "/usr/local/bin/riskrelay"
    (folder / "riskrelay").write_text(command)
    (folder / "riskrelay").chmod(0o755)
    return {**paths, "RISKRELAY": str(folder / "riskrelay")}


def as_cron(command: str, home: Path, paths: Mapping[str, str]) -> tuple[int, str]:
    """Run a command as cron does; return its exit code and the output that cron would mail."""
    environment = {"HOME": str(home), "LOGNAME": "riskrelay", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin", **paths}
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("layout", [in_a_checkout, with_systemd])
def test_every_cron_job_succeeds_and_prints_nothing(layout: Layout, tmp_path: Path, home: Path) -> None:
    paths = layout(tmp_path)
    code, printed = as_cron('"$RISKRELAY" init', Path(paths["RISKRELAY"]).parent.parent, paths)
    assert code == 0, printed
    for _, command in [*cron_jobs(), *cron_jobs()]:
        assert as_cron(command, home, paths) == (0, ""), command
    kept = sorted(path.suffix for path in Path(paths["BACKUPS"]).iterdir())
    assert kept == [".backup", ".backup", ".redactions"]
    assert list(home.iterdir()) == []
