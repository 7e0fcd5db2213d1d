"""The product needs only the packages of `make setup`, all pinned by hash and listed in the bill of materials."""

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted([*ROOT.glob("*.lock"), *ROOT.glob("bench/*.lock")])
#: One requirement: its exact version, its marker, and the digest of every file that may be installed.
PINNED = re.compile(
    r"(?P<name>[a-z0-9._-]+)(?:\[[a-z0-9,-]+\])?==(?P<version>[A-Za-z0-9.+!]+)(?: ; [^\n\\]+)?"
    r"(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
)
#: A tool that a script installs in a temporary environment.
PINNED_TOOL = re.compile(r"[a-z-]+(\[[a-z-]+\])?==[0-9.]+")

#: Imports all modules of the product in an interpreter that finds only the packages of the runtime lock file.
IMPORT_EVERYTHING = """
import importlib, importlib.metadata, sys

pinned = set(sys.argv[1].split(","))
owners = importlib.metadata.packages_distributions()
normal = lambda name: name.lower().replace("_", "-").replace(".", "-")

class OnlyPinned:
    def find_spec(self, name, path=None, target=None):
        known = owners.get(name.partition(".")[0])
        if known and not pinned & {normal(each) for each in known}:
            raise ModuleNotFoundError(f"{name} is not in requirements.lock", name=name)

sys.meta_path.insert(0, OnlyPinned())
for module in sys.argv[2:]:
    importlib.import_module(module)
"""


def test_the_product_imports_with_only_the_runtime_packages() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pinned = {name.lower().replace("_", "-") for name in re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)}
    assert {"falcon", "peewee", "gunicorn"} <= pinned
    assert "pytest" not in pinned
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in ("bin", "runtime", "schemas", "service", "storage", "worker")
        for path in sorted((ROOT / package).rglob("*.py"))
        # Two read an installation's settings when gunicorn imports them; two need an extra and are imported only with its
        # setting.
        if path.name not in {"wsgi.py", "gunicorn_config.py", "sentry.py", "opentelemetry.py"}
    ]
    process = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING, ",".join(pinned), *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr


def pins(lock: Path) -> list[re.Match[str]]:
    return list(PINNED.finditer(lock.read_text()))


@pytest.mark.parametrize("lock", LOCKS, ids=[lock.name for lock in LOCKS])
def test_a_lock_file_contains_only_versions_and_hashes(lock: Path) -> None:
    """No ranges, no other digests, no addresses: the user chooses the package index."""
    text = lock.read_text()
    assert pins(lock)
    assert re.fullmatch(r"# Written by [^\n]+\n", PINNED.sub("", text))
    assert "://" not in text


def test_packages_are_installed_by_hash_and_as_wheels() -> None:
    assert len(LOCKS) >= 6
    installing = [ROOT / "bin" / "setup", ROOT / "deploy" / "docker" / "Dockerfile"]
    for script in installing:
        text = script.read_text()
        assert "--require-hashes" in text
        assert "--only-binary=:all:" in text


def requirements(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_every_requirement_has_a_reason_and_bounds() -> None:
    settings = configparser.ConfigParser(interpolation=None)
    # The reason is a comment above each requirement.
    settings.read_string((ROOT / "setup.cfg").read_text().replace("\n    # ", "\n    because: "))
    extras = settings["options.extras_require"]
    for wanted in [settings["options"]["install_requires"], *extras.values()]:
        lines = requirements(wanted)
        assert len(lines) % 2 == 0, lines
        for reason, requirement in zip(lines[::2], lines[1::2], strict=True):
            assert re.fullmatch(r"because: \S.+", reason), requirement
            assert re.fullmatch(r"[A-Za-z0-9_-]+(\[[a-z,]+\])?>=[0-9.]+(,<[0-9]+)?", requirement), requirement


def test_tools_of_scripts_are_pinned() -> None:
    for script in ("lock", "audit"):
        text = (ROOT / "bin" / script).read_text()
        tools = re.findall(r"^[A-Z]+='?([^'#\n]*==[^'#\n]+?)'?(?: +#.*)?$", text, re.MULTILINE)
        assert tools
        assert [tool for tool in tools if not PINNED_TOOL.fullmatch(tool)] == []


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bill of materials as `make sbom` writes it."""
    path = tmp_path_factory.mktemp("sbom") / "build" / "sbom.cdx.json"
    subprocess.run([sys.executable, "-m", "tools.sbom", str(path)], cwd=ROOT, capture_output=True, check=True)
    return path.read_text()


def test_the_bill_of_materials_lists_every_pinned_package(bill: str) -> None:
    required = pins(ROOT / "requirements.lock")
    optional = [pin for lock in ("extras", "redis") for pin in pins(ROOT / f"requirements-{lock}.lock")]
    expected = [_component(pin, "required") for pin in required]
    known = [each["purl"] for each in expected]
    expected += [each for each in (_component(pin, "optional") for pin in optional) if each["purl"] not in known]
    listed = [{**each, "hashes": _digests(each)} for each in json.loads(bill)["components"]]
    assert sorted(listed, key=_purl) == sorted(expected, key=_purl)


def _purl(component: dict[str, Any]) -> str:
    return str(component["purl"])


def _component(pin: re.Match[str], scope: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{pin['name']}@{pin['version']}"
    named = {"name": pin["name"], "version": pin["version"], "purl": purl, "bom-ref": purl}
    return {"type": "library", "scope": scope, **named, "hashes": set(re.findall("[0-9a-f]{64}", pin["hashes"]))}


def _digests(component: dict[str, Any]) -> set[str]:
    assert {each["alg"] for each in component["hashes"]} == {"SHA-256"}
    return {each["content"] for each in component["hashes"]}


def test_the_bill_of_materials_contains_no_time_and_no_machine_name(bill: str) -> None:
    """No timestamp, serial number, address or path: it changes only when the pins or the version change."""
    document = json.loads(bill)
    text = json.dumps({name: value for name, value in document.items() if name != "$schema"})
    assert not re.search(r"://|timestamp|serialNumber|externalReferences|/tmp|/home|/root", text)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["version"] == VERSION


def test_the_editor_of_the_api_pages_package_is_not_installed() -> None:
    """It would take a seventh of an installation's size."""
    [files] = sorted((ROOT / ".venv").glob("lib/python3*/site-packages/swagger_ui/static"))
    assert (files / "swagger-ui-bundle.js").exists()
    assert list(files.glob("swagger-editor*")) == []
