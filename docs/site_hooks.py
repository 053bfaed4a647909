"""Hooks for the documentation site: the pages of the repository's root are part of it.

On the forge, README.md links to docs/broker.md, and docs/broker.md to ../ARCHITECTURE.md. On the site all pages are in
one directory, so these links lose their prefix here.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri
    source = next((name for name, target in PAGES.items() if target == uri), f"docs/{uri}")
    return _LINK.sub(lambda link: link[1] + _site_link(link[2], source, uri) + link[3], markdown)


def _site_link(link: str, source: str, page: str) -> str:
    """Return the link as the site has it. A link to a file that is no page is left, and found dead by the build."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if target in PAGES:
        target = PAGES[target]
    elif target.startswith("docs/"):
        target = target.removeprefix("docs/")
    else:
        return link
    return posixpath.relpath(target, posixpath.dirname(page) or ".")
