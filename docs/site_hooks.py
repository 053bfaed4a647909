"""MkDocs hooks that add the pages of the repository root to the documentation site.

In the repository, README.md links to docs/broker.md, and docs/broker.md links to ../ARCHITECTURE.md. On the site, all
these pages are in one directory, so the hooks remove the prefixes from the links.
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
    "SECURITY.md": "SECURITY.md",
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
    """Return the link's target on the site. Other links stay as they are, and the strict build reports dead ones."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if target in PAGES:
        target = PAGES[target]
    elif target.startswith("docs/"):
        target = target.removeprefix("docs/")
    else:
        return link
    return posixpath.relpath(target, posixpath.dirname(page) or ".")
