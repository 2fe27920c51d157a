# SPDX-License-Identifier: Apache-2.0
"""
`lerobot-serve docs`: generates the references of parameters and of messages, the classes of the
messages, the state diagrams of the pages, and the comments of the parameter files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lerobot_serve.errors import UserError

HELP = 'print the parameters of every node, or write the generated pages of docs/'
EXAMPLE = 'example: lerobot-serve docs --write'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--write',
        action='store_true',
        help='write docs/parameters.md, docs/messages.md, lerobot_serve/contract/records.py, the '
        'state diagrams in docs/*.md and the comments in config/*.yaml below the current folder',
    )


def main(options: argparse.Namespace) -> int:
    """Print or write the pages. Raises UserError."""
    from lerobot_serve.tools.reference import diagrams, parameter_files
    from lerobot_serve.tools.reference.pages import (
        CLASSES,
        message_classes,
        NODES,
        PAGES,
        PARAMETER_FILES,
    )

    if not options.write:
        print('\n'.join(make() for make in PAGES.values()))
        return 0
    docs, config = Path('docs'), Path('config')
    if not docs.is_dir() or not config.is_dir():
        raise UserError('no folders docs and config here; run this in the root of the repository')
    pages = {docs / name: make() for name, make in PAGES.items()} | {CLASSES: message_classes()}
    files = {
        path: parameter_files.with_comments(path.read_text(), NODES) for path in PARAMETER_FILES
    }
    for path, content in (diagrams.pages_with_diagrams(docs) | pages | files).items():
        path.write_text(content)
        print(f'wrote {path}')
    return 0
