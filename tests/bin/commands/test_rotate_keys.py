"""`riskrelay rotate-keys`, as an operator runs it, and real processes that are started with the wrong key."""

import base64
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bin.__main__ import riskrelay
from runtime.clock import utc_now
from storage.db.engine import close_database, connection, execute, open_database, rows
from storage.db.locks import Lock, exclusive
from storage.exports import worker_heartbeats
from storage.maintenance import key_rotation
from storage.secrets.key_check import canary, check_keys
from storage.secrets.vault import Vault
from storage.targets import targets
from tests.support.factories import NOW, environment, make_customer, make_target
from tests.support.processes.shell import Shell
from tests.support.processes.workers import RISKRELAY

OLD, NEW = b"A" * 32, b"B" * 32
ENV_FILE = "# Ours.\nLOG_LEVEL=info\n\nexport  ENCRYPTION_KEYS = '{keys}'   # kept safe\r\nWEBHOOK_SECRET=\"a b and on\"\n"


def text_of(*keys: bytes) -> str:
    return ",".join(base64.b64encode(key).decode() for key in keys)


class KeyShell(Shell):
    """Runs `rotate-keys` in its own installation, whose keys are in `.env`."""

    verb = ("rotate-keys",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.env_file = folder / ".env"
        self.environment |= {"ENCRYPTION_KEYS": None, "LOG_LEVEL": None, "WEBHOOK_SECRET": None}

    def has(self, *keys: bytes, form: str = ENV_FILE) -> None:
        """Write `.env` with these keys, and with a time before the start of any worker."""
        self.env_file.write_bytes(form.format(keys=text_of(*keys)).encode())
        self.env_file.chmod(0o600)
        os.utime(self.env_file, (0, 0))


@pytest.fixture
def shell(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyShell]:
    """An installation with the secrets of three targets, encrypted with its key."""
    monkeypatch.chdir(tmp_path)
    made = KeyShell(tmp_path, database_url)
    made.has(OLD)
    with made.database():
        check_keys(Vault([OLD]), NOW)
        customer = make_customer()
        for number in range(3):
            targets.set_secret(make_target(customer).id, f"secret {number}", Vault([OLD]), NOW)
    yield made
    close_database()


def test_a_rotation_reencrypts_every_secret_until_the_old_key_can_be_removed(shell: KeyShell) -> None:
    before = shell.env_file.read_text()
    made = shell.json("--generate")
    assert made == {"env_file": str(shell.env_file), "keys": 2}
    both = shell.env_file.read_text().partition("'")[2].partition("'")[0]
    assert both.endswith(f",{text_of(OLD)}")
    dry = shell.json("--dry-run")
    assert dry == {"reencrypted": 0, "waiting": 3, "unreadable": [], "keys": 2, "older_keys_needed": True}
    assert shell.json("--limit", "2") == {**dry, "reencrypted": 2, "waiting": 1}
    done = {"reencrypted": 1, "waiting": 0, "unreadable": [], "keys": 2, "older_keys_needed": False}
    assert shell.json() == done
    assert shell.json() == {**done, "reencrypted": 0}
    shell.env_file.write_text(before.replace(text_of(OLD), both.partition(",")[0]))
    assert shell.json() == {**done, "reencrypted": 0, "keys": 1}
    shell.has(OLD)
    assert "ENCRYPTION_KEYS does not open" in shell.refused()


def test_a_rotation_prints_the_next_step_and_never_a_key(shell: KeyShell) -> None:
    reported = shell.run("--generate").stdout
    assert "restart service and workers" in reported
    assert "bin/riskrelay rotate-keys" in reported
    keys = shell.env_file.read_text().partition("'")[2].partition("'")[0].split(",")
    assert len(keys) == 2
    assert "Older keys are still needed" in shell.run("--dry-run").stdout
    done = shell.run().stdout
    assert "You can remove the older keys" in done
    assert not any(key in reported + done for key in keys)


def test_generate_changes_one_line_and_makes_the_env_file_private(shell: KeyShell) -> None:
    shell.env_file.chmod(0o644)
    os.chown(shell.env_file, os.getuid(), os.getgid())
    before = shell.env_file.read_bytes()
    assert shell.run("--generate").exit_code == 0
    after = shell.env_file.read_bytes()
    key = after[after.index(b"'") + 1 :].partition(b",")[0]
    assert after == before.replace(text_of(OLD).encode(), key + b"," + text_of(OLD).encode())
    assert (len(base64.b64decode(key)), key) != (32, text_of(OLD).encode())
    assert stat.S_IMODE(shell.env_file.stat().st_mode) == 0o600
    assert [path.name for path in shell.env_file.parent.glob(".env*")] == [".env"]


def test_spaces_between_keys_are_accepted(shell: KeyShell) -> None:
    shell.has(OLD, form="ENCRYPTION_KEYS={keys}, " + text_of(NEW) + "\n")
    assert shell.json("--generate") == {"env_file": str(shell.env_file), "keys": 3}
    assert shell.env_file.read_text().endswith(f",{text_of(OLD)}, {text_of(NEW)}\n")


def test_generate_keeps_a_symbolic_link_to_the_env_file(shell: KeyShell, tmp_path: Path) -> None:
    elsewhere = tmp_path / "settings"
    shell.env_file.rename(elsewhere)
    shell.env_file.symlink_to(elsewhere)
    assert shell.run("--generate").exit_code == 0
    assert shell.env_file.is_symlink()
    assert elsewhere.read_text().count(",") == 1


def test_an_empty_variable_does_not_hide_the_keys_of_the_file(shell: KeyShell) -> None:
    shell.environment |= {"ENCRYPTION_KEYS": "", "ENCRYPTION_KEYS_FILE": ""}
    assert shell.json("--generate")["keys"] == 2
    assert shell.json("--dry-run")["keys"] == 2


def test_generate_refuses_keys_that_the_environment_sets(shell: KeyShell, tmp_path: Path) -> None:
    before = shell.env_file.read_bytes()
    shell.environment["ENCRYPTION_KEYS"] = text_of(OLD)
    reported = shell.refused("--generate")
    assert "comes from the environment" in reported
    assert "openssl rand -base64 32" in reported
    (tmp_path / "keys").write_text(text_of(OLD))
    shell.environment |= {"ENCRYPTION_KEYS": None, "ENCRYPTION_KEYS_FILE": str(tmp_path / "keys")}
    assert "comes from the environment" in shell.refused("--generate")
    assert shell.env_file.read_bytes() == before


def test_generate_does_not_change_keys_given_by_a_file(shell: KeyShell, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(text_of(OLD))
    shell.has(OLD, form="ENCRYPTION_KEYS_FILE=keys\n")
    before = shell.env_file.read_bytes()
    assert "Add a new key and a comma in front" in shell.refused("--generate")
    assert shell.env_file.read_bytes() == before


def test_generate_adds_no_key_to_wrong_keys(shell: KeyShell) -> None:
    shell.has(NEW)
    assert "does not open" in shell.refused("--generate")
    assert text_of(NEW) + "'" in shell.env_file.read_text()


def test_generate_and_dry_run_together_are_wrong_usage(shell: KeyShell) -> None:
    assert shell.run("--generate", "--dry-run").exit_code == 2


def test_a_secret_that_no_key_decrypts_is_reported_by_row_and_column_with_exit_code_1(shell: KeyShell) -> None:
    shell.has(NEW, OLD)
    with shell.database():
        [(target_id,)] = rows("SELECT MIN(id) FROM targets")
        execute("UPDATE targets SET secret_sealed = ? WHERE id = ?", (b"gone", target_id))
    place = {"table": "targets", "id": target_id, "column": "secret_sealed"}
    record = shell.json(exit_code=1)
    assert (record["reencrypted"], record["unreadable"], record["older_keys_needed"]) == (2, [place], False)
    reported = shell.run()
    assert reported.exit_code == 1
    assert (
        f"targets {target_id}: no key decrypts secret_sealed; restore the key that encrypted it, or set it again"
        in reported.stderr
    )


def test_a_rotation_is_refused_until_the_workers_of_this_host_are_restarted(shell: KeyShell) -> None:
    shell.has(NEW, OLD)
    with shell.database():
        worker_heartbeats.beat(worker_heartbeats.process_name("worker"), utc_now())
    # The fixture has made the file older than any worker.
    assert shell.json("--limit", "1")["reencrypted"] == 1
    ahead = utc_now().timestamp() + 3600
    os.utime(shell.env_file, (ahead, ahead))
    assert "Restart it first" in shell.refused()
    assert shell.json("--dry-run")["waiting"] == 2
    shell.environment["ENCRYPTION_KEYS"] = text_of(NEW, OLD)
    assert shell.json()["reencrypted"] == 2
    # If no secret needs the rotation, the command succeeds without keys.
    shell.environment["ENCRYPTION_KEYS"] = None
    assert shell.json()["reencrypted"] == 0


def test_a_rotation_without_secrets_is_also_refused_until_workers_are_restarted(shell: KeyShell) -> None:
    shell.has(NEW, OLD)
    with shell.database():
        execute("UPDATE targets SET secret_sealed = NULL, secret_fingerprint = NULL")
        worker_heartbeats.beat(worker_heartbeats.process_name("worker"), utc_now())
    ahead = utc_now().timestamp() + 3600
    os.utime(shell.env_file, (ahead, ahead))
    assert "Restart it first" in shell.refused()
    with shell.database():
        # A service with only the old key stays ready.
        check_keys(Vault([OLD]), NOW)


def test_a_second_concurrent_rotation_is_refused(shell: KeyShell) -> None:
    shell.has(NEW, OLD)
    open_database(shell.url)
    with connection(), exclusive(Lock.ROTATE_KEYS):
        words = [RISKRELAY, "rotate-keys"]
        settings = {name: value for name, value in shell.environment.items() if value is not None}
        second = subprocess.run(words, env=settings, cwd=shell.env_file.parent, capture_output=True, text=True, check=False)
    assert (second.returncode, second.stderr) == (1, "riskrelay: Another rotate-keys is running; wait until it ends.\n")
    with connection():
        assert key_rotation.survey(Vault([NEW, OLD])).outdated == 3


@pytest.mark.parametrize("verb", ["serve", "work", "run"])
def test_a_wrong_key_prevents_the_start_with_a_one_line_error(tmp_path: Path, sqlite_url: str, verb: str) -> None:
    open_database(sqlite_url)
    with connection():
        check_keys(Vault([NEW]), NOW)
        made = canary()
    close_database()
    settings = environment(tmp_path, DATABASE_URL=sqlite_url)
    started = subprocess.run(
        [RISKRELAY, verb], env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert started.returncode == 1
    [line] = started.stderr.splitlines()
    assert line.startswith("riskrelay: ENCRYPTION_KEYS does not open what this installation has sealed; put back")
    assert "Traceback" not in started.stdout
    open_database(sqlite_url)
    with connection():
        assert canary() == made
    close_database()


def test_a_secret_cannot_be_set_with_a_wrong_key(shell: KeyShell) -> None:
    shell.environment["ENCRYPTION_KEYS"] = text_of(NEW)
    with shell.database():
        [(target_id,)] = rows("SELECT MIN(id) FROM targets")
    for words in (["secret", "set", "scanner"], ["secret", "set", "target", target_id]):
        result = CliRunner().invoke(riskrelay, words, env=shell.environment, input="a new secret")
        assert (result.exit_code, "does not open" in result.stderr) == (1, True)
    with shell.database():
        assert rows("SELECT COUNT(*) FROM integration_secrets") == [(0,)]
        assert key_rotation.survey(Vault([OLD])).outdated == 0
