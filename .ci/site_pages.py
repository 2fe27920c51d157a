# SPDX-License-Identifier: Apache-2.0
"""
Hook of mkdocs: pages of the site that are files at the top of the repository.

README.md is the first page; links between it and docs/ lead to the same pages as in the
repository. Scripts are served from the site where .ci/site.py fetched them.
"""

from __future__ import annotations

from pathlib import Path
import re
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / '.workspace' / 'site'
MERMAID, SEARCH = 'mermaid.js', 'iframe-worker.js'
# file at the top -> page of the site
TOP_PAGES = {
    'README.md': 'index.md',
    'CONTRIBUTING.md': 'contributing.md',
    'CHANGELOG.md': 'changelog.md',
    'SECURITY.md': 'security_policy.md',
    'QUALITY_DECLARATION.md': 'quality_declaration.md',
}
LINK = re.compile(r'(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)')


def on_config(config: Any) -> Any:
    if (SITE / MERMAID).exists():
        config.extra_javascript.append(f'assets/{MERMAID}')
    if (SITE / SEARCH).exists():
        # the plugin `offline` would load it from the web
        config.extra['polyfills'] = [f'assets/{SEARCH}']
    return config


def on_files(files: Files, config: Any) -> Files:
    for name, page in TOP_PAGES.items():
        if (ROOT / name).exists():
            text = from_the_top((ROOT / name).read_text())
            files.append(File.generated(config, page, content=text))
    for script in (MERMAID, SEARCH):
        if (SITE / script).exists():
            content = (SITE / script).read_bytes()
            files.append(File.generated(config, f'assets/{script}', content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links of docs/ to files at the top to their pages."""
    return from_the_top(markdown.replace('](../', ']('))


def from_the_top(text: str) -> str:
    """Return a page of the top with its links as they are from docs/."""
    text = text.replace('](docs/', '](')
    return LINK.sub(lambda match: linked(match[1], match[2], match[3]), text)


def linked(text: str, target: str, place: str | None) -> str:
    """Return a link of the site; what is no page of it is named without one."""
    page = TOP_PAGES.get(target, target)
    is_page = '://' in page or (page.endswith('.md') and '/' not in page)
    return f'[{text}]({page}{place or ""})' if is_page else text
