"""What mkdocs is told about this repository: its pages link to what lies outside of `docs/`, as they do on a forge.

Loaded by `mkdocs.yml` (`make docs`). Of what lies outside and is linked to, the documents become pages, and any other file
or folder is copied below `source/`: the site needs no forge beside it. A link to something that is not there is left as it
is, so that the strict build refuses it.
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

#: Documents outside of `docs/`, and what their pages are called. SECURITY.md could not be told from security.md everywhere.
DOCUMENTS: Final[Mapping[str, str]] = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "report-a-hole.md",
}
DOCS: Final = "docs/"
#: Where other files of the repository are found in the site.
SOURCE: Final = "source/"
#: The page that lists a folder there.
CONTENTS: Final = "contents.md"

#: A link to something of the repository: neither an address, nor a place on the same page.
_LINK: Final = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?P<place>#[^)\s]*)?(?=\))")
_ROW: Final = re.compile(r"^\|.*$", re.MULTILINE)
_CODE: Final = re.compile(r"`[^`\n]+`")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out the pages that have to know where the site is served: their links would be wrong below any other path."""
    config.theme.static_templates -= {"404.html", "sitemap.xml"}
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the documents outside of `docs/`, and every other file or folder that a page links to."""
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
    """Turn links as a forge follows them into links of the site, and rows of tables into what mkdocs reads as such."""
    here = page.file.src_uri
    told = _LINK.sub(lambda found: in_site(here, found["path"]) + (found["place"] or ""), markdown)
    return _ROW.sub(lambda row: _CODE.sub(_plain, row[0]), told)


def in_site(src_uri: str, link: str) -> str:
    """Return a link of a page as it has to be in the site."""
    path = _in_repository(src_uri, link)
    if not (ROOT / path).exists():
        return link
    if (ROOT / path).is_dir():
        path = f"{path}/{CONTENTS}"
    target = path.removeprefix(DOCS) if path.startswith(DOCS) else DOCUMENTS.get(path, SOURCE + path)
    return posixpath.relpath(target, posixpath.dirname(src_uri) or ".")


def _plain(code: re.Match[str]) -> str:
    """Return a code of a table as it is shown: a forge takes the backslash before a bar away, Python-Markdown shows it."""
    return code[0].replace(r"\|", "|")


def _added(config: MkDocsConfig, src_uri: str, path: str) -> File:
    added = File.generated(config, src_uri, abs_src_path=str(ROOT / path))
    added.inclusion = InclusionLevel.NOT_IN_NAV
    return added


def _contents(config: MkDocsConfig, folder: str) -> File:
    """Return a page that lists what is in a folder, as a forge shows it."""
    names = (PurePosixPath(path).name for path in _files_in(folder))
    content = "\n".join([f"# {folder}", "", *(f"- [{name}]({name})" for name in names), ""])
    made = File.generated(config, f"{SOURCE}{folder}/{CONTENTS}", content=content)
    made.inclusion = InclusionLevel.NOT_IN_NAV
    return made


def _files_in(folder: str) -> list[str]:
    return sorted(f"{folder}/{path.name}" for path in (ROOT / folder).iterdir() if path.is_file())


def _linked(page: File) -> Iterator[str]:
    """Yield the files and folders of the repository that a page links to and that are no pages."""
    for found in _LINK.finditer(page.content_string):
        path = _in_repository(page.src_uri, found["path"])
        if not path.startswith(DOCS) and path not in DOCUMENTS and (ROOT / path).exists():
            yield path


def _in_repository(src_uri: str, link: str) -> str:
    """Return where a link of a page leads in the repository."""
    path = next((path for path, page in DOCUMENTS.items() if page == src_uri), DOCS + src_uri)
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
