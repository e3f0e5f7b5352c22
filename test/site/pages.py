"""What the site needs besides the pages of docs: the README as its first page, the
pages beside it, and links that lead out of docs. A link to a file that is not there
ends the build."""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": "index.md", "SECURITY.md": "SECURITY.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^(`{3,}).*?^\1$", re.M | re.S)


def on_config(config):
    """Puts the pages of a directory where the navigation says so."""
    for section in config.nav:
        for title, pages in section.items() if isinstance(section, dict) else ():
            section[title] = [found for page in pages for found in expand(config.docs_dir, page)]
    return config


def expand(docs, pattern):
    if "*" not in pattern:
        return [pattern]
    return sorted(str(p.relative_to(docs)) for p in Path(docs).glob(pattern))


def on_files(files, config):
    for page, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / page).read_text()))
    files.append(File.generated(config, "mermaid.js", abs_src_path=os.environ["MERMAID"]))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrites links, but not in blocks of code."""
    name = page.file.src_uri
    # Where the text is in the repository, which its links are relative to.
    origin = next((at for at, there in PAGES.items() if there == name), f"docs/{name}")

    def rewrite(match):
        target = match[2]
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if not (ROOT / path).exists():
            raise PluginError(f"{origin}: the link to {target} leads nowhere")
        if path in PAGES:
            inside = PAGES[path]
        elif path.startswith("docs/") and (ROOT / path).is_file():
            inside = path.removeprefix("docs/")
        else:
            return f"{match[1]}{config.repo_url}/blob/main/{path}{match[3]}"
        return match[1] + posixpath.relpath(inside, posixpath.dirname(name) or ".") + match[3]

    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(rewrite, markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join(parts) + LINK.sub(rewrite, markdown[at:])
