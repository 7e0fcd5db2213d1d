"""What runs needs only what `make setup` installs: the test tools must not hide a missing requirement."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Imports everything that runs, in an interpreter that knows only the distributions named in the runtime's lock file.
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


def test_everything_that_runs_imports_with_the_runtimes_pins_alone() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pinned = {name.lower().replace("_", "-") for name in re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)}
    assert {"falcon", "peewee", "gunicorn"} <= pinned
    assert "pytest" not in pinned
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for room in ("bin", "schemas", "service", "storage", "worker")
        for path in sorted((ROOT / room).glob("*.py"))
        # Two read an installation's settings when they are imported, and are imported by gunicorn alone; two need what an
        # extra brings, and are imported where its setting is there.
        if path.name not in {"wsgi.py", "gunicorn_config.py", "sentry.py", "opentelemetry.py"}
    ]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING, ",".join(pinned), *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
