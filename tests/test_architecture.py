"""Rules for the source code: who writes statuses and reads the clock, no evaluation of data, names and imports."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from schemas.base.errors import RiskRelayError

ROOT = Path(__file__).resolve().parent.parent
API = (ROOT / "docs" / "api.md").read_text()
ROOMS = ("bin", "runtime", "schemas", "service", "storage", "worker")


def sources() -> list[Path]:
    return [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]


def subclasses(kind: type[RiskRelayError]) -> list[type[RiskRelayError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in subclasses(child))]


def test_every_error_class_has_a_docstring() -> None:
    assert [kind.__name__ for kind in subclasses(RiskRelayError) if not kind.__doc__] == []


def test_only_claims_and_transitions_write_the_export_status() -> None:
    writing = re.compile(
        r"UPDATE exports\b|INSERT INTO exports\b|\bExportRow\.(update|create|insert)(_\w+)?\(|insert_records\(ExportRow"
    )
    paths = [path for path in sources() if path.parent.name != "migrations"]
    writers = {str(path.relative_to(ROOT)) for path in paths if writing.search(path.read_text())}
    # Statements for groups change tickets and counts, but no status.
    groups = "storage/exports/groups_sql.py"
    assert re.search(r"SET [^;]*?\bstatus = ", (ROOT / groups).read_text()) is None
    of_status = {f"storage/exports/{name}.py" for name in ("claims_sql", "transitions", "transitions_sql")}
    assert writers == of_status | {groups}


def test_only_one_module_reads_the_clock() -> None:
    reading = re.compile(r"datetime\.now\(|\.utcnow\(|\btime\.time\(")
    readers = {str(path.relative_to(ROOT)) for path in sources() if reading.search(path.read_text())}
    assert readers == {"runtime/clock.py"}


def test_every_module_has_a_docstring() -> None:
    assert [str(path.relative_to(ROOT)) for path in sources() if not path.read_text().startswith('"""')] == []


def test_every_disabled_check_has_a_reason() -> None:
    without_reason = re.compile(r"# (noqa(: [A-Z0-9, ]+)?|type: ignore(\[[a-z, -]+\])?)$")
    written = [path for room in WRITTEN for path in (ROOT / room).rglob("*.py")]
    lines = {f"{path.relative_to(ROOT)}: {line.strip()}" for path in written for line in path.read_text().splitlines()}
    assert [line for line in sorted(lines) if without_reason.search(line)] == []


#: Modules and functions that make code, objects or commands from data.
MAKERS = {
    "eval",
    "exec",
    "compile",
    "pickle",
    "marshal",
    "shelve",
    "dill",
    "yaml",
    "xml",
    "lxml",
    "system",
    "popen",
    "getoutput",
}
#: Algorithms and modules that are not secure enough for secrets.
WEAK = {"md5", "sha1", "crypt", "DES", "ARC4", "ECB", "CBC", "PKCS1v15", "random"}


def trees() -> dict[str, ast.Module]:
    product = {str(path.relative_to(ROOT)) for path in sources()}
    return {path: tree for path, tree in written().items() if path in product}


def names_used(tree: ast.AST) -> Iterator[str]:
    """Yield every imported module or name, every function that is called by its name, and attributes of some modules."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name.partition(".")[0] for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (module.partition(".")[0], *(name.name for name in names))
            case ast.Call(func=ast.Name(id=name)):
                yield name
            case ast.Attribute(value=ast.Name(id="os" | "subprocess" | "hashlib" | "modes" | "padding"), attr=name):
                yield name
            case _:
                pass


def test_no_code_evaluates_data_or_runs_it_in_a_shell() -> None:
    makers = {path: MAKERS & {*names_used(tree)} for path, tree in trees().items()}
    assert {path: names for path, names in makers.items() if names} == {}
    assert [path for path, tree in trees().items() for node in ast.walk(tree) if _asks_for_a_shell(node)] == []


def _asks_for_a_shell(node: ast.AST) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "shell"


def test_no_code_uses_weak_hashes_or_random_numbers() -> None:
    weak = {path: WEAK & {*names_used(tree)} for path, tree in trees().items()}
    # Retries have random jitter, which spreads load.
    assert {path: names for path, names in weak.items() if names} == {"worker/delivery/attempt.py": {"random"}}


#: Private metaphors, which are not allowed in names and docstrings.
BANNED = frozenset(
    {"drain", "drains", "drained", "lane", "lanes", "errand", "errands", "manners", "seat", "seats", "glance", "census"}
    | {"courier", "clerk", "desk", "shelf", "doorbell", "ring", "rings", "mood", "moods", "mischief", "told", "heard"}
)
#: Words that are also not allowed in names of the product. Benchmarks have rounds, and docstrings may mention round trips.
BANNED_IN_PRODUCT = BANNED | {"round", "rounds", "turn", "turns"}
#: Names that the standard library defines.
ALLOWED = frozenset({"round", "drain"})
WRITTEN = (*ROOMS, "tools", "tests", "bench", "soak", "examples")


@cache
def written() -> dict[str, ast.Module]:
    paths = [path for folder in WRITTEN for path in (ROOT / folder).rglob("*.py")]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in ALLOWED:
                pass
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case _:
                pass


@cache
def words_in(name: str) -> frozenset[str]:
    return frozenset(part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name))


def docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_no_identifier_has_a_banned_word() -> None:
    found = {
        f"{path}: {name}"
        for path, tree in written().items()
        for name in {*identifiers(tree)}
        if (BANNED_IN_PRODUCT if path.startswith(ROOMS) else BANNED) & words_in(name)
    }
    assert sorted(found) == []


def test_no_file_name_has_a_banned_word() -> None:
    assert [path for path in written() if BANNED & {*re.split(r"[/_.]", path)}] == []


def test_no_docstring_has_a_banned_word() -> None:
    found = {
        f"{path}: {text[:80]}"
        for path, tree in written().items()
        for text in docstrings(tree)
        if BANNED & {*re.findall(r"[a-z]+", text.lower())}
    }
    assert sorted(found) == []


def test_a_class_name_is_used_once() -> None:
    places: dict[str, list[str]] = {}
    for path, tree in written().items():
        for node in ast.walk(tree):
            # marshmallow and Peewee read options from a class `Meta`.
            if isinstance(node, ast.ClassDef) and node.name != "Meta":
                places.setdefault(node.name, []).append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_hand_written_sql_is_in_its_own_modules() -> None:
    statement = re.compile(r"\b(SELECT|INSERT INTO|(?<!FOR )(?<!NO KEY )UPDATE|DELETE FROM) [a-zA-Z*({]")
    # The database layer, its migrations, and backup files, which are read without Peewee.
    allowed = re.compile(r"storage/db/|storage/maintenance/sqlite_copies\.py|.*_sql\.py")
    found = {str(path.relative_to(ROOT)) for path in sources() if statement.search(path.read_text())}
    assert [path for path in sorted(found) if not allowed.match(path)] == []
