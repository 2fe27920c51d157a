# SPDX-License-Identifier: Apache-2.0
"""
The files of the page, read once at start, and the content security policy that allows exactly the
scripts and styles in it. Pure but for `read_page`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

from lerobot_serve.errors import UserError

FOLDER = Path(__file__).parent.parent / 'page'
INDEX = 'index.html'
KINDS = {'.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css'}
FILES = ('uPlot.iife.min.js', 'uPlot.min.css')


@dataclass(frozen=True, slots=True)
class Page:
    """Content and type of each file by its path, and the policy that they are sent with."""

    files: dict[str, tuple[bytes, str]]
    policy: str


class _Inline(HTMLParser):
    """Collects the texts of inline scripts and styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._open: list[str] | None = None
        self._parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == 'script' and 'src' not in dict(attrs):
            self._open, self._parts = self.scripts, []
        if tag == 'style':
            self._open, self._parts = self.styles, []

    def handle_data(self, data: str) -> None:
        self._parts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ('script', 'style') and self._open is not None:
            self._open.append(''.join(self._parts))
            self._open = None


def read_page(folder: Path = FOLDER) -> Page:
    """Return the page. Raises UserError when a file of the installation is missing."""
    try:
        found = {f'/{name}': _file(folder / name) for name in FILES if (folder / name).exists()}
        index = _file(folder / INDEX)
    except OSError as error:
        raise UserError(
            f'the page of the dashboard is not installed: {error.filename}: {error.strerror}; '
            'install lerobot_serve again'
        ) from error
    return Page({'/': index, **found}, content_policy(index[0].decode()))


def _file(path: Path) -> tuple[bytes, str]:
    return path.read_bytes(), f'{KINDS[path.suffix]}; charset=utf-8'


def content_policy(index: str) -> str:
    """Return the content security policy for an index.html."""
    inline = _Inline()
    # a browser hashes a text with its line ends normalised
    inline.feed(index.replace('\r\n', '\n'))
    inline.close()
    return '; '.join(
        (
            "default-src 'none'",
            f"script-src 'self'{hashes(inline.scripts)}",
            f"style-src 'self'{hashes(inline.styles)}",
            "connect-src 'self'",
            "img-src 'self' blob: data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def hashes(texts: Iterable[str]) -> str:
    """Return the hash sources of inline texts, each with a space before it."""
    digests = (base64.b64encode(sha256(text.encode()).digest()).decode() for text in texts)
    return ''.join(f" 'sha256-{digest}'" for digest in digests)
