"""Writes the software bill of materials of the product: `make sbom` (CycloneDX 1.6, build/sbom.cdx.json).

It reads the lock files and nothing else: no network, no clock, no machine. The same lock files give the same bytes.
"""

import configparser
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from schemas.version import VERSION

ROOT: Final = Path(__file__).resolve().parent.parent
SBOM: Final = ROOT / "build" / "sbom.cdx.json"

#: Lock files by scope. `optional` is what the extras and the embedded Redis need; `required` wins if both name a package.
LOCKS: Final = {"optional": ("requirements-extras.lock", "requirements-redis.lock"), "required": ("requirements.lock",)}
_PIN: Final = re.compile(
    r"^(?P<name>[a-z0-9._-]+)(?:\[[^\]]+\])?==(?P<version>[^\s;\\]+)(?P<rest>.*(?:\n +--hash=.*)+)", re.MULTILINE
)
_SHA256: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def main() -> None:
    """Write the bill to the path given, or to build/sbom.cdx.json."""
    path = Path(sys.argv[1]) if sys.argv[1:] else SBOM
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill_of_materials(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(f"{path}\n")


def bill_of_materials() -> dict[str, Any]:
    """Return the bill as a CycloneDX 1.6 document, components sorted by package URL."""
    components = {
        component["purl"]: component
        for scope, locks in LOCKS.items()
        for lock in locks
        for component in _components((ROOT / lock).read_text(encoding="utf-8"), scope)
    }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _application()},
        "components": [components[purl] for purl in sorted(components)],
    }


def _components(lock: str, scope: str) -> list[Mapping[str, Any]]:
    return [_component(pin["name"], pin["version"], _SHA256.findall(pin["rest"]), scope) for pin in _PIN.finditer(lock)]


def _component(name: str, version: str, digests: list[str], scope: str) -> Mapping[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    hashes = [{"alg": "SHA-256", "content": digest} for digest in digests]
    named = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return {**named, "hashes": hashes, "scope": scope}


def _application() -> dict[str, Any]:
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    metadata = settings["metadata"]
    return {
        "type": "application",
        "bom-ref": metadata["name"],
        "name": metadata["name"],
        "version": VERSION,
        "description": metadata["description"],
        "licenses": [{"license": {"id": metadata["license"]}}],
    }


if __name__ == "__main__":
    main()
