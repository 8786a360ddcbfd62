"""Build the site, with warnings as errors; look whether its links lead anywhere and it is offline.

python docs/build.py [FOLDER]    # docs/_build/html
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.cmd.build import build_main

DOCS = Path(__file__).parent


class Page(HTMLParser):
    """Targets of a page's links and pictures, the names in it, and what it fetches elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.elsewhere: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what one tag names and links to."""
        found = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        for key in ("href", "src"):
            value = found.get(key)
            is_fetched = key == "src" or (tag == "link" and found.get("rel") != "canonical")
            if value and is_fetched and urlsplit(value).netloc:
                self.elsewhere.append(value)
            if tag != "link" and value:
                self.links.append(value)


def broken(folder: Path) -> Iterator[str]:
    """Links inside the site that lead nowhere, and what a page fetches from elsewhere."""
    pages = {
        path: Page(path.read_text())
        for path in folder.rglob("*.html")
        if "_static" not in path.parts
    }
    for path, page in pages.items():
        for link in page.elsewhere:
            yield f"{path.relative_to(folder)}: fetches {link} from elsewhere"
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            anchor = unquote(parts.fragment)
            if not target.exists():
                yield f"{path.relative_to(folder)}: {link} does not exist"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{path.relative_to(folder)}: {link} has no such place"


def main(arguments: list[str]) -> int:
    """Build into a folder; 0 where all went well."""
    folder = Path(arguments[0] if arguments else DOCS / "_build" / "html").resolve()
    trees = folder.parent / "doctrees"
    options = ["-W", "--keep-going", "-q", "-c", str(DOCS), "-d", str(trees), "-b", "html"]
    if code := build_main([*options, str(DOCS.parent), str(folder)]):
        return code
    found = sorted(set(broken(folder)))
    print("\n".join(found) or f"wrote {folder / 'index.html'}")  # noqa: T201  # a command
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
