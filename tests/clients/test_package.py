"""The built package, installed offline into an environment with only httpx, against a real installation."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import time
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from schemas.version import VERSION
from tests.support.factories import SCANNER_SECRET, WEBHOOK_SECRET, Customer
from worker.http.signing import sign

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = ROOT / "clients" / "python"
#: The Python blocks of the README by their heading.
_BLOCK: Final = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```", re.MULTILINE | re.DOTALL)
BLOCKS: Final = dict(_BLOCK.findall((PROJECT / "README.md").read_text(encoding="utf-8")))

#: Receives with the README's function, creates a target for itself, and runs the README's programs.
PROGRAM: Final = """
    import json, os, runpy, sys, threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from riskrelay_client import RiskRelay, __version__
    from errors_block import approve
    from webhooks_block import receive

    responses = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = receive(self.headers, body, os.environ["SECRET"])
            responses.append(status)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            return

    PAGE = {"url": "https://shop.example/", "statusCode": 200}
    ISSUE = {"code": "img-alt", "title": "Image without alternative text", "severity": "medium"}

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    with RiskRelay(os.environ["RISKRELAY_URL"], scanner_secret=os.environ["SCANNER_SECRET"]) as client:
        submitted = client.scanner.submit({"scanRunId": 1, "status": "completed", "page": PAGE, "issues": [ISSUE]})
    with RiskRelay(os.environ["RISKRELAY_URL"], os.environ["RISKRELAY_TOKEN"]) as client:
        target = client.targets.create({"provider_key": "generic_webhook", "base_url": url, "name": "Receiver"})
        pinged = client.targets.ping(target["id"])
        os.environ["TARGET"] = target["id"]
        runpy.run_path("quick_start_block.py")
        runpy.run_path("asynchronous_block.py")
        waiting = [each["id"] for each in client.exports.list(status="prepared", page_size=1)]
        edited = client.exports.edit(waiting[0], title="Edited")
        stale = approve(client, {**edited, "ticket_digest": "sha256:" + "0" * 64}, target["id"])
        approve(client, edited, target["id"])
        done = client.exports.wait(waiting[0], 60)
        client.exports.dismiss(waiting[1], reason="test")
        page = client.exports.page(facets=True)
    print(json.dumps({
        "version": __version__, "file": sys.modules["riskrelay_client"].__file__, "responses": responses,
        "pinged": pinged["delivered"], "waiting": len(waiting), "stale": stale["status"], "done": done["status"],
        "ticket": done["provider_ticket"]["id"] == waiting[0], "submitted": submitted["findings"]["new"],
        "facets": page["facets"]["status"], "total": page["total"],
    }))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source archive, built as `make client` does."""
    folder = tmp_path_factory.mktemp("client")
    # In a copy, because a build writes into its folder.
    shutil.copytree(PROJECT, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "out"), str(folder / "source"))
    return folder / "out"


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel and its requirements."""
    folder = tmp_path_factory.mktemp("environment")
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    interpreter, [packages] = folder / "bin" / "python", folder.glob("lib/python3.*/site-packages")
    _link("httpx", packages)
    pip = (sys.executable, "-m", "pip", "--python", str(interpreter), "--disable-pip-version-check")
    _run(*pip, "install", "--no-index", "--quiet", str(next(built.glob("*.whl"))))
    return interpreter


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _link(name: str, packages: Path, done: set[str] | None = None) -> None:
    """Link an installed package and its requirements into another environment."""
    done = set() if done is None else done
    found = distribution(name)
    for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
        (packages / top).symlink_to(str(found.locate_file(top)))
    done.add(canonicalize_name(name))
    for requirement in map(Requirement, found.requires or ()):
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_needed and canonicalize_name(requirement.name) not in done:
            _link(requirement.name, packages, done)


def test_the_package_contains_its_types_and_license(built: Path) -> None:
    [wheel], [source] = built.glob("*.whl"), built.glob("*.tar.gz")
    assert (wheel.name, source.name) == (
        f"riskrelay_client-{VERSION}-py3-none-any.whl",
        f"riskrelay_client-{VERSION}.tar.gz",
    )
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        [metadata] = [files.read(name).decode() for name in names if name.endswith("/METADATA")]
    modules = {str(path.relative_to(PROJECT)) for path in PROJECT.rglob("*.py")} | {"riskrelay_client/py.typed"}
    assert {name for name in names if ".dist-info/" not in name} == modules
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert re.findall(r"^Requires-Dist: (.*)$", metadata, re.M) == ["httpx<1,>=0.28"]
    with tarfile.open(source) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    assert modules | {"LICENSE", "README.md", "pyproject.toml"} <= members


@pytest.mark.parametrize(("kind", "status"), [("target.ping", 200), ("ticket.redact", 422), ("ticket.updated", 422)])
def test_the_receiver_in_the_readme_rejects_events_that_it_does_not_handle(kind: str, status: int) -> None:
    program: dict[str, Any] = {}
    exec(BLOCKS["Webhooks"], program)  # noqa: S102 - our own README
    body = json.dumps({"id": "evt_1", "type": kind, "export": {"id": "exp_1"}, "change": {}}).encode()
    at, nonce = int(time.time()), "0" * 32
    signature = sign(WEBHOOK_SECRET.encode(), at, nonce, body)
    headers = {"X-Service-Timestamp": str(at), "X-Service-Nonce": nonce, "X-Service-Signature": signature}
    assert program["receive"](headers, body, WEBHOOK_SECRET)[0] == status


def test_the_readme_exports_every_variable_that_its_programs_read() -> None:
    exported = set(re.findall(r"^export (\w+)=", (PROJECT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert {name for code in BLOCKS.values() for name in re.findall(r'environ\["(\w+)"\]', code)} == exported


def test_a_ticket_is_submitted_approved_and_delivered_by_the_installed_package(
    python: Path, installation: tuple[str, Customer], tmp_path: Path
) -> None:
    for heading, code in BLOCKS.items():
        (tmp_path / f"{heading.lower().replace(' ', '_')}_block.py").write_text(code)
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    url, customer = installation
    credentials = {
        "RISKRELAY_URL": url,
        "RISKRELAY_TOKEN": customer.token,
        "SECRET": WEBHOOK_SECRET,
        "SCANNER_SECRET": SCANNER_SECRET,
    }
    done = subprocess.run(
        [python, "-W", "error", "program.py"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], **credentials},
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    *printed, last = done.stdout.splitlines()
    result = json.loads(last)
    assert Path(result.pop("file")).is_relative_to(python.parents[1])
    assert result == {
        "version": VERSION,
        "responses": [200, 200, 200],
        "pinged": True,
        "waiting": 3,
        "stale": "prepared",
        "done": "exported",
        "ticket": True,
        "submitted": 1,
        "facets": {"exported": 2, "dismissed": 1, "prepared": 1},
        "total": 4,
    }
    assert printed[0].startswith("exported {'id': 'exp_")
    assert printed[1] == "2 prepared"
    titles = {"The cart forgets its coupon", "The search finds nothing", "Image without alternative text on shop.example/"}
    assert {line.split(" ", 1)[1] for line in printed[2:]} == titles
