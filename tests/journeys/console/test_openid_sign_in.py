"""A user signs in and out at a certified issuer, in a real browser, with the service as a real process."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, expect

from schemas.base.principal import Role
from storage.accounts import accounts
from storage.db.engine import rows
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, environment
from tests.support.processes.gunicorn_process import Service
from tests.support.servers.redis_and_postgres import RedisServer
from tests.support.servers.runtimes import missing, runtime

# Other tests cover the stored data on both databases.
pytestmark = on_sqlite

ROOT: Final = Path(__file__).parents[3]
#: The path where bin/runtimes installs the issuer.
INSTALLED: Final = ROOT / "build" / "certified-issuer"
PROGRAM: Final = Path(__file__).with_name("certified_issuer") / "issuer.mjs"
CLIENT: Final = ("riskrelay", "a secret of the client")


@contextmanager
def certified_issuer(port: int, home: str) -> Iterator[None]:
    """Run the issuer for the console at `home`."""
    if not (INSTALLED / "node_modules" / "oidc-provider").is_dir():
        missing("certified issuer for Node.js")
    command = [str(runtime("node")), str(PROGRAM), str(INSTALLED), str(port), *CLIENT, home]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield
        finally:
            process.kill()


def test_a_user_signs_in_and_out_at_the_openid_issuer(
    browser: Browser, customer: Customer, database: str, redis: RedisServer, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {"DATABASE_URL": database, "REDIS_URL": redis.url, "WEB_PROCESSES": "1"}
    settings |= {"OIDC_ISSUER": f"http://127.0.0.1:{port}", "OIDC_CLIENT_ID": CLIENT[0], "OIDC_CLIENT_SECRET": CLIENT[1]}
    settings |= {"OIDC_ROLES": "triage=triager", "OIDC_LABEL": "Sign in at the agency"}
    with Service(environment(tmp_path, **settings)) as service:
        home = f"http://127.0.0.1:{service.port}"
        with certified_issuer(port, home):
            page = browser.new_page()
            page.goto(f"{home}/console/findings")
            page.get_by_role("link", name="Sign in at the agency").click()
            page.locator("input[name=login]").fill("ada")
            page.locator("input[name=password]").fill("any")
            page.locator("button[type=submit]").click()
            page.locator("button[type=submit]", has_text="Continue").click()
            page.wait_for_url(f"{home}/console/findings")
            assert accounts.user_by_email("ada@agency.example").role is Role.TRIAGER
            page.goto(f"{home}/console/sessions")
            expect(page.locator("main table")).to_contain_text("OpenID Connect")

            page.get_by_role("button", name="Sign out").click()
            page.get_by_role("button", name="Yes, sign me out").click()
            page.wait_for_url(f"{home}/console/sign-in**")
            assert rows("SELECT ended_reason FROM console_sessions") == [("signed_out",)]
            # The issuer asks for the user's credentials again.
            page.get_by_role("link", name="Sign in at the agency").click()
            expect(page.locator("input[name=login]")).to_be_visible()
            page.context.close()
        assert '"level": "error"' not in service.log.read_text()
