"""Lets pages of the site link to files outside `docs/`, as they can on GitHub.

Loaded by `mkdocs.yml` (`make docs`). Linked documents outside `docs/` become pages. Every other linked file or folder is
copied below `source/`, so that the site is self-contained. A link to a missing file is kept: the strict build rejects it.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent

#: Documents outside `docs/` and their page names. SECURITY.md and security.md are one file on some file systems.
DOCUMENTS: Final[Mapping[str, str]] = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "report-a-vulnerability.md",
    "clients/python/README.md": "client-library.md",
}
DOCS: Final = "docs/"
#: The site's folder for other files of the repository.
SOURCE: Final = "source/"
#: The page that lists a copied folder.
CONTENTS: Final = "contents.md"

#: A link to a file of the repository: neither a URL nor an anchor on the same page.
_LINK: Final = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?P<place>#[^)\s]*)?(?=\))")
_ROW: Final = re.compile(r"^\|.*$", re.MULTILINE)
_CODE: Final = re.compile(r"`[^`\n]+`")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Omit pages whose links depend on the path the site is served under."""
    config.theme.static_templates -= {"404.html", "sitemap.xml"}
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the documents outside `docs/` and every other file or folder that a page links to."""
    for path, page in DOCUMENTS.items():
        files.append(_added(config, page, path))
    linked = {path for page in files.documentation_pages() for path in _linked(page)}
    folders = {path for path in linked if (ROOT / path).is_dir()}
    for folder in sorted(folders):
        files.append(_contents(config, folder))
    for path in sorted(linked - folders | {path for folder in folders for path in _files_in(folder)}):
        files.append(_added(config, SOURCE + path, path))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs passes them by name
    """Convert GitHub links to links of the site, and table rows to Python-Markdown syntax."""
    here = page.file.src_uri
    linked = _LINK.sub(lambda found: in_site(here, found["path"]) + (found["place"] or ""), markdown)
    return _ROW.sub(lambda row: _CODE.sub(_plain, row[0]), linked)


def in_site(src_uri: str, link: str) -> str:
    """Return the site's form of a link on a page."""
    path = _in_repository(src_uri, link)
    if not (ROOT / path).exists():
        return link
    if (ROOT / path).is_dir():
        path = f"{path}/{CONTENTS}"
    target = path.removeprefix(DOCS) if path.startswith(DOCS) else DOCUMENTS.get(path, SOURCE + path)
    return posixpath.relpath(target, posixpath.dirname(src_uri) or ".")


def _plain(code: re.Match[str]) -> str:
    """Remove the backslash before a bar in inline code of a table: GitHub hides it, Python-Markdown shows it."""
    return code[0].replace(r"\|", "|")


def _added(config: MkDocsConfig, src_uri: str, path: str) -> File:
    added = File.generated(config, src_uri, abs_src_path=str(ROOT / path))
    added.inclusion = InclusionLevel.NOT_IN_NAV
    return added


def _contents(config: MkDocsConfig, folder: str) -> File:
    """Return a page that lists the files of a folder, as GitHub does."""
    names = (PurePosixPath(path).name for path in _files_in(folder))
    content = "\n".join([f"# {folder}", "", *(f"- [{name}]({name})" for name in names), ""])
    made = File.generated(config, f"{SOURCE}{folder}/{CONTENTS}", content=content)
    made.inclusion = InclusionLevel.NOT_IN_NAV
    return made


def _files_in(folder: str) -> list[str]:
    return sorted(f"{folder}/{path.name}" for path in (ROOT / folder).iterdir() if path.is_file())


def _linked(page: File) -> Iterator[str]:
    """Yield the linked files and folders of the repository that are not pages of the site."""
    for found in _LINK.finditer(page.content_string):
        path = _in_repository(page.src_uri, found["path"])
        if not path.startswith(DOCS) and path not in DOCUMENTS and (ROOT / path).exists():
            yield path


def _in_repository(src_uri: str, link: str) -> str:
    """Return the path in the repository that a link on a page points to."""
    path = next((path for path, page in DOCUMENTS.items() if page == src_uri), DOCS + src_uri)
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
