"""The files under deploy/ and the crontab match the commands, settings and numbers of the product.

`bin/check-deploy` validates them with systemd, nginx, Caddy and Docker; it is run by hand.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from bin.__main__ import riskrelay
from bin.processes.supervisor import STOP_GRACE_S
from schemas.base.errors import (
    Forbidden,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    RiskRelayError,
    ServiceUnavailable,
    error_body,
)
from schemas.intake.report_uploads import MAX_FILE_BYTES
from schemas.settings.definitions import FILE_SUFFIX, SETTINGS, Settings, load_settings
from service.console.pages.report_uploads import UploadReportPage
from service.http.error_responses import STATUS
from service.http.form_bodies import MAX_OTHER_BYTES
from tests.support.factories import ENCRYPTION_KEY
from tests.support.processes.crontab import CRONTAB, cron_jobs

ROOT: Final = Path(__file__).resolve().parent.parent
DEPLOY: Final = ROOT / "deploy"
UNITS: Final = sorted((DEPLOY / "systemd").glob("*.service"))
DAEMONS: Final = ("riskrelay", "riskrelay-service", "riskrelay-worker")
NGINX: Final = (DEPLOY / "nginx" / "riskrelay.conf").read_text()
CADDY: Final = (DEPLOY / "caddy" / "Caddyfile").read_text()
DOCKERFILE: Final = (DEPLOY / "docker" / "Dockerfile").read_text()
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
DOCUMENT: Final = (ROOT / "docs" / "deployment.md").read_text()

#: The time for which bin/processes/embedded_redis.py waits for the end of Redis, which `run` stops last.
REDIS_STOP_S: Final = 10
#: Variables of other programs in these files.
OTHER_VARIABLES: Final = {
    "RISKRELAY_ENV",
    "PYTHONDONTWRITEBYTECODE",
    "POSTGRES_USER",
    "POSTGRES_DB",
    "POSTGRES_PASSWORD",
    "MAILTO",
    "RISKRELAY",
    "BACKUPS",
}
OUR_SERVICES: Final = ("migrate", "service", "worker")


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment without any RiskRelay setting."""
    for setting in SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)
        monkeypatch.delenv(setting.name + FILE_SUFFIX, raising=False)
    return monkeypatch


@pytest.fixture
def defaults(bare_environment: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """The default settings."""
    return load_settings(tmp_path / "none")


# --- commands ---


def directives(unit: Path) -> list[tuple[str, str]]:
    """Return the lines of a unit as (name, value), in order."""
    lines = [line for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


def values(unit: Path, name: str) -> list[str]:
    return [value for each, value in directives(unit) if each == name]


def value(unit: Path, name: str) -> str:
    """Return the only value of a directive."""
    [found] = values(unit, name)
    return found


def cron_lines() -> list[tuple[list[str], str]]:
    """Return the five fields and the command of every job of the crontab."""
    return [(fields.split(), command) for fields, command in cron_jobs()]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield each RiskRelay command that a file starts, with the file."""
    for unit in UNITS:
        for line in values(unit, "ExecStart") + values(unit, "ExecStopPost"):
            program, *words = shlex.split(line)
            assert program == "/srv/riskrelay/bin/riskrelay"
            yield unit.name, words
    for _, line in cron_lines():
        yield "crontab", shlex.split(line.partition('"$RISKRELAY" ')[2].partition(" >")[0])
    for name in OUR_SERVICES:
        yield f"compose {name}", COMPOSE["services"][name]["command"]
    yield "Dockerfile", json.loads(_only(r"^CMD (.+)$", DOCKERFILE))
    for line in re.findall(r"^(?:sudo |\$ )?(?:riskrelay|.*/bin/riskrelay) ([a-z].*)$", DOCUMENT, re.MULTILINE):
        yield "docs/deployment.md", shlex.split(line, comments=True)


def _only(pattern: str, text: str) -> str:
    [found] = re.findall(pattern, text, re.MULTILINE)
    return str(found)


def accept(words: list[str]) -> click.Command:
    """Return the command of a command line. Raises click.UsageError for an unknown command or option."""
    command: click.Command = riskrelay
    rest = list(words)
    while isinstance(command, click.Group):
        with click.Context(command, info_name="riskrelay") as context:
            _, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
    command.make_context(words[0], rest)
    return command


STARTED: Final = [pytest.param(place, words, id=f"{place}: {' '.join(words)}") for place, words in commands()]


@pytest.mark.parametrize(("place", "words"), STARTED)
def test_every_started_command_exists_with_its_options(place: str, words: list[str]) -> None:
    assert accept(words).callback is not None, place


@pytest.mark.parametrize("words", [["prun"], ["prune", "--no-such-option"], ["backup"], ["compliance", "none"]])
def test_a_missing_command_or_option_is_detected(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        accept(words)


def test_cron_and_the_timers_run_the_recurring_jobs() -> None:
    by_cron = {
        " ".join(words[:2]) if words[0] == "compliance" else words[0] for place, words in commands() if place == "crontab"
    }
    assert by_cron == {"sweep", "compliance run", "compliance export", "backup", "prune"}
    timers = {timer.stem for timer in (DEPLOY / "systemd").glob("*.timer")}
    assert timers == {"riskrelay-backup", "riskrelay-prune", "riskrelay-compliance"}
    assert timers <= {unit.stem for unit in UNITS}


def test_a_failure_of_another_command_does_not_prevent_a_timer_from_running_its_command() -> None:
    """systemd skips every further ExecStart once one has failed."""
    for unit in UNITS:
        assert len(values(unit, "ExecStart")) == 1, unit.name


#: The range of each of the five fields of a crontab's line.
FIELDS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def test_a_crontab_line_has_five_fields_and_prints_only_errors() -> None:
    for fields, command in cron_lines():
        for field, (least, most) in zip(fields, FIELDS, strict=True):
            assert re.fullmatch(r"\*|\*/\d+|\d+", field), command
            assert all(least <= int(number) <= most for number in re.findall(r"\d+", field)), command
        assert command.startswith('"$RISKRELAY" ')
        assert command.endswith(" >/dev/null")
        # cron treats a percent sign as the end of the command.
        assert "%" not in command


def test_cron_prunes_after_the_backup() -> None:
    at = {command.split()[1]: (int(fields[1]), int(fields[0])) for fields, command in cron_lines() if fields[1] != "*"}
    assert at["backup"] < at["prune"]


# --- settings ---


def settings_named() -> set[str]:
    units = [line for unit in UNITS for line in values(unit, "Environment")]
    credentials = re.findall(r"^Environment=(.+)$", (DEPLOY / "systemd" / "credentials.conf").read_text(), re.MULTILINE)
    wrapper = re.findall(r"([A-Z_]+)=/", (DEPLOY / "systemd" / "riskrelay").read_text())
    image = re.findall(r"^(?:ENV)? +([A-Z_]+)=", DOCKERFILE, re.MULTILINE)
    composed = [name for each in COMPOSE["services"].values() for name in each.get("environment", {})]
    proxies = re.findall(r"\b([A-Z]+(?:_[A-Z]+)+)\b", "\n".join(re.findall(r"#.*", NGINX + CADDY)))
    crontab = re.findall(r"\b([A-Z]+_[A-Z]+)\b|^([A-Z]+)=", CRONTAB, re.MULTILINE)
    named = {*(line.partition("=")[0] for line in (*units, *credentials)), *wrapper, *image, *composed, *proxies}
    return {name.removesuffix(FILE_SUFFIX) for name in (*named, *(a or b for a, b in crontab))} - OTHER_VARIABLES - {"HOME"}


def test_every_named_setting_exists() -> None:
    named = settings_named()
    assert {"DATA_DIR", "ENCRYPTION_KEYS", "TRUSTED_PROXIES", "MAX_BODY_BYTES", "RETENTION_DAYS"} <= named
    assert named - {setting.name for setting in SETTINGS} == set()


def test_every_secret_can_be_a_credential_and_a_container_secret() -> None:
    credentials = (DEPLOY / "systemd" / "credentials.conf").read_text()
    kept = {
        "ENCRYPTION_KEYS",
        "WEBHOOK_SECRET",
        "SCANNER_SHARED_SECRET",
        "EMAIL_WEBHOOK_SECRET",
        "STOREFRONT_WEBHOOK_SECRET",
    }
    assert kept <= {setting.name for setting in SETTINGS if setting.is_secret}
    for name in kept:
        assert f"\nEnvironment={name}_FILE=%d/{name.lower()}\n" in credentials
        assert f"\nLoadCredential={name.lower()}:" in credentials
        for service in OUR_SERVICES:
            assert COMPOSE["services"][service]["environment"][f"{name}_FILE"] == f"/run/secrets/{name.lower()}"


# --- systemd ------------------------------------------------------------------

#: Without one of these, a unit's exposure would score over 2.0, or an intruder could reach more of the system.
CONFINED: Final = {
    "User": "riskrelay",
    "UMask": "0077",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "PrivateUsers": "yes",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "RestrictNamespaces": "yes",
    "RestrictSUIDSGID": "yes",
    "MemoryDenyWriteExecute": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectProc": "invisible",
    "SystemCallArchitectures": "native",
    # For receivers, PostgreSQL and Redis.
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
    "IPAddressDeny": "169.254.169.254 fd00:ec2::254",
    "LimitCORE": "0",
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: str(unit.stem))
def test_every_unit_is_confined(unit: Path) -> None:
    assert {name: values(unit, name) for name in CONFINED} == {name: [wanted] for name, wanted in CONFINED.items()}
    assert values(unit, "SystemCallFilter") == ["@system-service", "~@privileged @resources"]


def test_the_confinement_is_identical_in_every_unit() -> None:
    begin = "# --- confinement"
    blocks = {re.split(r"\n\n\[", unit.read_text().partition(begin)[2])[0].strip() for unit in UNITS}
    assert len(blocks) == 1
    assert len(blocks.pop().splitlines()) > 40


@pytest.mark.parametrize("name", DAEMONS)
def test_a_daemon_restarts_unless_settings_are_invalid_or_it_keeps_failing(name: str) -> None:
    unit = DEPLOY / "systemd" / f"{name}.service"
    expected = {"Type": "exec", "Restart": "on-failure", "RestartPreventExitStatus": "2", "KillMode": "mixed"}
    assert {each: value(unit, each) for each in expected} == expected
    within_s, starts, pause_s = (
        int(value(unit, each)) for each in ("StartLimitIntervalSec", "StartLimitBurst", "RestartSec")
    )
    # The limit must be reachable within the interval.
    assert starts * pause_s < within_s


def longest_stop_s(settings: Settings) -> dict[str, float]:
    """Return the longest stop of each daemon in seconds, from constants of the code."""
    gunicorn_s = int(_only(r"^graceful_timeout = (\d+)$", (ROOT / "service" / "server" / "gunicorn_config.py").read_text()))
    supervised_s = settings.delivery_timeout_s + STOP_GRACE_S
    return {
        "riskrelay-service": gunicorn_s,
        "riskrelay-worker": supervised_s,
        # Service, workers and Redis, one after the other.
        "riskrelay": supervised_s + supervised_s + REDIS_STOP_S,
    }


def test_the_stop_timeout_exceeds_the_longest_stop(defaults: Settings) -> None:
    longest = longest_stop_s(defaults)
    for name in DAEMONS:
        assert int(value(DEPLOY / "systemd" / f"{name}.service", "TimeoutStopSec")) > longest[name]
    for name in ("service", "worker"):
        grace = COMPOSE["services"][name]["stop_grace_period"]
        assert int(grace.removesuffix("s")) > longest[f"riskrelay-{name}"]


def test_the_file_limit_of_a_unit_is_as_high_as_the_daemon_requests(defaults: Settings) -> None:
    asked_for = int(_only(r"^_FILES: Final = ([\d_]+)$", (ROOT / "worker" / "daemon.py").read_text()))
    for name in DAEMONS:
        assert int(value(DEPLOY / "systemd" / f"{name}.service", "LimitNOFILE")) >= max(asked_for, defaults.web_threads)


def test_the_schema_is_migrated_before_service_and_worker_start() -> None:
    for name in ("riskrelay-service", "riskrelay-worker"):
        unit = DEPLOY / "systemd" / f"{name}.service"
        assert all("riskrelay-migrate.service" in value(unit, each) for each in ("Wants", "After"))


def test_all_in_one_starts_after_service_and_worker_have_stopped() -> None:
    apart = {"riskrelay-service.service", "riskrelay-worker.service"}
    unit = DEPLOY / "systemd" / "riskrelay.service"
    assert set(value(unit, "Conflicts").split()) == apart
    # With Conflicts= alone, one would start while the other still has the port.
    assert apart <= set(" ".join(values(unit, "After")).split())


def test_units_name_existing_units() -> None:
    there = {path.name for path in (DEPLOY / "systemd").iterdir()}
    for path in (DEPLOY / "systemd").glob("*.*"):
        named = re.findall(r"riskrelay(?:-[a-z]+)?\.(?:service|timer|target)(?!\.d)", path.read_text())
        assert set(named) <= there, path.name


# --- proxies ------------------------------------------------------------------


def test_a_proxy_accepts_bodies_as_large_as_the_service(defaults: Settings) -> None:
    assert int(_only(r"^    client_max_body_size (\d+);", NGINX)) == defaults.max_body_bytes
    assert int(_only(r"Content-Length}\) > (\d+)`", CADDY)) == defaults.max_body_bytes
    # More than the service accepts, so that the service itself rejects a large body without a length.
    cut_at, upload = sorted({int(size) for size in re.findall(r"(?:max_size|request_buffers) (\d+)", CADDY)})
    assert defaults.max_body_bytes < cut_at < defaults.max_body_bytes + 65536
    # Only the form for a scanner's report may be larger.
    assert upload == int(_only(r"^            client_max_body_size (\d+);", NGINX)) == MAX_FILE_BYTES + MAX_OTHER_BYTES
    assert f"location = {UploadReportPage.path} {{" in NGINX
    assert re.findall(r"(?:path|request_body) (/console/\S+)", CADDY) == [UploadReportPage.path] * 3


def test_a_proxy_closes_idle_connections_before_the_service() -> None:
    kept_s = int(_only(r"^keepalive = (\d+)$", (ROOT / "service" / "server" / "gunicorn_config.py").read_text()))
    assert int(_only(r"^ +keepalive_timeout (\d+)s;", NGINX)) < kept_s
    assert int(_only(r"^\t+keepalive (\d+)s$", CADDY)) < kept_s


def test_a_proxy_waits_for_the_slowest_response(defaults: Settings) -> None:
    margin_s = float(_only(r"^_MARGIN_S: Final = ([\d.]+)$", (ROOT / "service" / "operations" / "targets.py").read_text()))
    longest_s = defaults.delivery_timeout_s + margin_s
    assert int(_only(r"proxy_read_timeout (\d+)s;", NGINX)) > longest_s
    assert int(_only(r"response_header_timeout (\d+)s", CADDY)) > longest_s
    assert int(_only(r"^\t+write (\d+)s$", CADDY)) > int(_only(r"response_header_timeout (\d+)s", CADDY))


def test_a_proxy_sets_the_real_client_address() -> None:
    assert "proxy_set_header X-Forwarded-For $remote_addr;" in NGINX
    assert "proxy_add_x_forwarded_for" not in NGINX
    # Caddy does so by default, unless it trusts a proxy.
    assert "trusted_proxies" not in CADDY
    assert "header_up X-Forwarded-For" not in CADDY


def test_a_proxy_hides_metrics_and_readiness() -> None:
    for path in ("/metrics", "/readyz"):
        assert re.search(rf"location = {path}\s+{{ return 404 ", NGINX)
        assert path in _only(r"@private path (.+)$", CADDY).split()


def error_responses(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the status and the body of each error response of a proxy."""
    for before, body, after in re.findall(r"(\d{3})? ?['`](\{\"error\".+?\}\})['`] ?(\d{3})?", text):
        filled = re.sub(r"\$\w+|\{http\.[\w.]+\}", "x", body)
        yield int(before or after), json.loads(filled)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NGINX, [Forbidden(), NotFound(), NotFound(), PayloadTooLarge(), RateLimited(1), ServiceUnavailable()]),
        (CADDY, [NotFound(), PayloadTooLarge(), ServiceUnavailable()]),
    ],
    ids=["nginx", "caddy"],
)
def test_error_responses_of_a_proxy_have_the_form_of_the_service(text: str, expected: list[RiskRelayError]) -> None:
    responses = list(error_responses(text))
    assert [(status, body["error"]["code"]) for status, body in responses] == [
        (int(STATUS[e.code]), e.code) for e in expected
    ]
    shape = error_body(expected[0], "x")
    for _, body in responses:
        assert body.keys() == shape.keys()
        assert body["error"].keys() == shape["error"].keys()


def test_a_proxy_rejects_plain_http_and_sends_hsts() -> None:
    """With a redirect, a client would send its token unencrypted without an error."""
    assert not re.search(r"return 30\d|rewrite ", NGINX)
    assert "auto_https disable_redirects" in CADDY
    for_a_year = r"max-age=31536000; includeSubDomains"
    assert _only(r'^\theader Strict-Transport-Security "(.+)"$', CADDY) == for_a_year
    # nginx does not inherit add_header into a block with its own.
    tls = NGINX[NGINX.index("listen 443") :]
    outer, *own = (block for block in re.split(r"(?=\n    location )", tls) if "add_header" in block)
    assert len(own) == 5
    assert all(f'Strict-Transport-Security "{for_a_year}" always;' in block for block in (outer, *own))
    assert all("X-Content-Type-Options nosniff always;" in block for block in own)


def test_a_proxy_allows_only_tls_1_2_and_newer() -> None:
    assert _only(r"ssl_protocols\s+(.+);", NGINX) == "TLSv1.2 TLSv1.3"
    # Caddy's default.
    assert "protocols" not in CADDY


# --- containers ---------------------------------------------------------------


def test_every_container_is_confined() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
    users = {name: COMPOSE["services"][name]["user"] for name in ("postgres", "redis")}
    assert all(not user.startswith("0") for user in users.values())


def test_only_the_service_is_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}
    assert published == {"service": ["127.0.0.1:8000:8000"]}
    assert COMPOSE["networks"]["inside"]["internal"] is True
    assert all(COMPOSE["services"][name]["networks"] == ["inside"] for name in ("postgres", "redis", "migrate"))


def test_containers_start_after_their_dependencies_are_healthy() -> None:
    healthy, done = {"condition": "service_healthy"}, {"condition": "service_completed_successfully"}
    for name in ("service", "worker"):
        assert COMPOSE["services"][name]["depends_on"] == {"postgres": healthy, "redis": healthy, "migrate": done}
    assert all("test" in COMPOSE["services"][name]["healthcheck"] for name in ("postgres", "redis"))


def test_container_files_contain_no_secret() -> None:
    for service in COMPOSE["services"].values():
        for name, text in service.get("environment", {}).items():
            assert (
                not re.search(r"SECRET|PASSWORD|KEYS|_URL$", name)
                or text.startswith("/run/secrets/")
                or name == "PUBLIC_BASE_URL"
            )
    assert not re.search(r"^(ARG|ENV|COPY).*(SECRET|PASSWORD|KEYS|\.env)", DOCKERFILE, re.MULTILINE)


def test_the_image_runs_unprivileged_and_installs_by_hash() -> None:
    assert _only(r"^USER (\d+):\d+$", DOCKERFILE) == "10001"
    assert "--require-hashes" in DOCKERFILE
    assert "--only-binary=:all:" in DOCKERFILE
    # The settings of a package mirror may contain a password. They are mounted during the build, so no layer contains them.
    assert "--mount=type=secret,id=pip,target=/etc/pip.conf" in DOCKERFILE
    # The folder is a volume, whose owner is set in the image, because the options of tmpfs differ between Docker and Podman.
    assert _only(r"^VOLUME (.+)$", DOCKERFILE) == "/var/lib/riskrelay"
    assert not any(":" in folder for name in OUR_SERVICES for folder in COMPOSE["services"][name]["tmpfs"])
    assert "/healthz" in _only(r"^    CMD (\[.+\])$", DOCKERFILE)


def test_the_pg_dump_of_the_image_matches_the_database() -> None:
    client = _only(r"postgresql-client-(\d+)", DOCKERFILE)
    assert COMPOSE["services"]["postgres"]["image"].startswith(f"postgres:{client}-")


def copied() -> list[str]:
    """Return the names of the files copied into the image."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    return [name for line in lines for name in line.split()]


def test_the_build_context_holds_only_the_copied_files() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert sorted(line.removeprefix("!") for line in rules if line.startswith("!")) == sorted(copied())


def test_the_files_of_the_image_are_sufficient_to_run(tmp_path: Path) -> None:
    for name in copied():
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    environment = {"PATH": os.environ["PATH"], "DATA_DIR": str(tmp_path / "data"), "ENCRYPTION_KEYS": ENCRYPTION_KEY}
    done = subprocess.run(
        [tmp_path / "bin" / "riskrelay", "migrate"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "data" / "riskrelay.db").exists()


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """The secrets that make-secrets wrote, in a copy of deploy/docker."""
    made = shutil.copytree(DEPLOY / "docker", tmp_path / "docker", ignore=shutil.ignore_patterns("secrets"))
    subprocess.run([made / "make-secrets"], check=True, capture_output=True)
    return made / "secrets"


def test_the_settings_of_every_container_are_valid(secrets: Path, bare_environment: pytest.MonkeyPatch) -> None:
    service = COMPOSE["services"]["worker"]
    for name, text in service["environment"].items():
        filled = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", str(text)).replace("/run/secrets", str(secrets))
        bare_environment.setenv(name, filled)
    settings = load_settings(secrets.parent / "none")
    assert not settings.redis_embedded
    assert settings.redis_url == f"redis://:{(secrets / 'redis_password').read_text()}@redis:6379/0"
    assert settings.database_url.startswith(f"postgresql://riskrelay:{(secrets / 'postgres_password').read_text()}@")
    assert len(settings.encryption_keys) == 1
    assert len({settings.webhook_secret, settings.scanner_shared_secret, settings.email_webhook_secret}) == 3


def test_make_secrets_writes_every_secret_to_a_private_folder(secrets: Path) -> None:
    assert {path.name for path in secrets.iterdir()} == set(COMPOSE["secrets"])
    assert {each["file"] for each in COMPOSE["secrets"].values()} == {f"./secrets/{path.name}" for path in secrets.iterdir()}
    assert secrets.stat().st_mode & 0o777 == 0o700
    # Each container reads them as a different user.
    assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o444}
    assert all(set(service.get("secrets", ())) <= set(COMPOSE["secrets"]) for service in COMPOSE["services"].values())


def test_existing_secrets_are_never_replaced(secrets: Path) -> None:
    before = {path.name: path.read_bytes() for path in secrets.iterdir()}
    again = subprocess.run([secrets.parent / "make-secrets"], check=False, capture_output=True, text=True)
    assert (again.returncode, "exists already" in again.stderr) == (1, True)
    assert {path.name: path.read_bytes() for path in secrets.iterdir()} == before
    assert {path.name for path in secrets.parent.iterdir()} == {"Dockerfile", "compose.yaml", "make-secrets", "secrets"}


def test_generated_secrets_are_ignored_by_git() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/deploy/docker/secrets/", "/deploy/docker/.env"} <= set(ignored)


def test_redis_in_its_container_reads_its_password_from_standard_input() -> None:
    shell, option, script = COMPOSE["services"]["redis"]["command"]
    assert (shell, option) == ("sh", "-c")
    # An argument would be visible in the process list.
    assert script.splitlines()[0] == "exec redis-server - <<CONFIG"
    assert "requirepass $$(cat /run/secrets/redis_password)" in script


# --- documentation ---


def test_the_document_names_every_file() -> None:
    files = [path for folder in ("systemd", "docker", "nginx", "caddy") for path in (DEPLOY / folder).iterdir()]
    missing = [path.name for path in files if path.is_file() and f"`{path.name}`" not in DOCUMENT]
    assert missing == []


@pytest.mark.parametrize(
    "script",
    ["bin/check-deploy", "bin/check-image", "bin/image", "deploy/systemd/riskrelay", "deploy/docker/make-secrets"],
    ids=lambda name: Path(name).name,
)
def test_a_script_is_executable_and_parses(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert subprocess.run(["sh", "-n", ROOT / script], check=False, capture_output=True).returncode == 0
