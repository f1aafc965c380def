"""Hooks of MkDocs for this repository: pages outside of docs/, and links to them.

A page of docs/ may link to any file of the repository, as on a code forge. On the site, a link to one of
`PAGES` leads to the page that is generated from that file. A link to another file that exists becomes plain
text. A broken link fails the build, and so does a page that would fetch a file from another host.
"""

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
log = logging.getLogger("mkdocs.hooks.site")

# Files of the repository that are also pages of the site.
PAGES = {
    "ARCHITECTURE.md": "explain/architecture.md",
    "SECURITY.md": "explain/security.md",
    "CONTRIBUTING.md": "explain/contributing.md",
    "CHANGELOG.md": "explain/changelog.md",
    "bench/README.md": "explain/bench.md",
    "bench/FIGURES.md": "explain/figures.md",
}
SOURCES = {page: source for source, page in PAGES.items()}

# Directories of build output and of other projects.
BUILT = {"target", "out", "node_modules", "__pycache__"}

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
FETCHED = re.compile(
    r"<(?:script|img|iframe|link(?! rel=\"canonical\"))[^>]*\s(?:src|href)=\"?(https?:)?//[^>]*>"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside of docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    check_other_documents()
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Changes each link to the address of its target on the site."""
    here = page.file.src_uri
    source = SOURCES.get(here, f"docs/{here}")

    def led(match: re.Match) -> str:
        text, link = match.groups()
        path, anchor = split(link)
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        target = beside(source, path)
        if not (ROOT / target).exists():
            log.warning("%s links to %s, which does not exist", source, link)
        on_site = PAGES.get(target) or page_of(target, files)
        if on_site:
            return f"[{text}]({os.path.relpath(on_site, Path(here).parent)}{anchor})"
        return text

    return outside_of_fences(markdown, lambda part: LINK.sub(led, part))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warns if a page would fetch a file from another host. In a strict build, a warning is an error."""
    for match in FETCHED.finditer(output):
        log.warning("%s fetches from elsewhere: %s", page.file.src_uri, match[0])
    return output


def check_other_documents() -> None:
    """Checks the links of documents that are not pages, such as the README. MkDocs checks the pages."""
    for directory, directories, files in os.walk(ROOT):
        directories[:] = [name for name in directories if not name.startswith(".") and name not in BUILT]
        for file in (Path(directory) / name for name in files if name.endswith(".md")):
            name = file.relative_to(ROOT).as_posix()
            is_page = name in PAGES or (name.startswith("docs/") and not name.startswith("docs/notebooks/"))
            if not is_page:
                outside_of_fences(file.read_text(), lambda part, name=name: check_links(name, part))


def check_links(name: str, text: str) -> str:
    """Warns about broken links in `text`, a part of the document `name`. Returns `text`."""
    for _, link in LINK.findall(text):
        path, anchor = split(link)
        if "://" in link or link.startswith("mailto:"):
            continue
        target = ROOT / (beside(name, path) if path else name)
        if not target.exists():
            log.warning("%s links to %s, which does not exist", name, link)
        elif anchor and target.suffix == ".md" and anchor[1:] not in anchors(target.read_text()):
            log.warning("%s links to %s, and there is no such heading", name, link)
    return text


def anchors(text: str) -> set[str]:
    """Returns the anchors that a code forge creates for the headings of a document."""
    headings = re.findall(r"^#+ +(.*?) *$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def split(link: str) -> tuple[str, str]:
    """Splits a link into the path, and the anchor with its `#`."""
    path, mark, anchor = link.partition("#")
    return path, mark + anchor


def beside(source: str, path: str) -> str:
    """Returns the path from the root for a `path` relative to `source`."""
    return os.path.normpath(Path(source).parent / path)


def page_of(target: str, files: Files) -> str | None:
    """Returns the page or image of docs/ for `target`; `None` if `target` is not on the site."""
    inside = target.removeprefix("docs/")
    file = files.get_file_from_path(inside) if inside != target else None
    return inside if file and not file.inclusion.is_excluded() else None


def outside_of_fences(text: str, change: Callable[[str], str]) -> str:
    """Applies `change` to all text outside of code blocks."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])
