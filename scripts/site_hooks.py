"""MkDocs hooks: README.md is the home page, and links work in the repository and on the site.

Pages link to each other as files of the repository. On the site, docs/ is the root, README.md is
index.md, and other files (CONTRIBUTING.md, examples, benchmark results) keep their paths.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")
_LIST = re.compile(r"(^[^\s|>#`*-].*\n)(?=- )", re.MULTILINE)
_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside docs/, and every other file that a page links to."""
    for name, page in _PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    texts = {page.src_uri: page.content_string for page in files.documentation_pages()}
    for page, text in texts.items():
        for target in _LINK.findall(text):
            path = _target(page, target)
            uri = _site_path(path)
            if (ROOT / path).is_file() and files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links to paths of the site. Begin lists with an empty line, which MkDocs needs."""

    def rewritten(match: re.Match[str]) -> str:
        uri = _site_path(_target(page.file.src_uri, match[1]))
        return f"]({os.path.relpath(uri, PurePosixPath(page.file.src_uri).parent)}"

    return _LIST.sub(r"\1\n", _LINK.sub(rewritten, markdown))


def _target(page: str, link: str) -> str:
    """Return the path in the repository that a page's link leads to."""
    repository = {site: name for name, site in _PAGES.items()}
    source = PurePosixPath(repository.get(page, f"docs/{page}"))
    return os.path.normpath(source.parent / link)


def _site_path(path: str) -> str:
    """Return the path on the site of a file of the repository."""
    return _PAGES.get(path, path.removeprefix("docs/"))
