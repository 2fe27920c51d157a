# SPDX-License-Identifier: Apache-2.0
"""
`lerobot-serve docs`: generates the references of parameters and of messages, the classes of the
messages, the state diagrams of the pages, and the comments of the parameter files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli.signature import Argument, verb_of

HELP = 'print the parameters of every node, or write the generated pages of docs/'
EXAMPLE = 'example: lerobot-serve docs --write'


def docs(
    *,
    write: Annotated[
        bool,
        Argument(
            'write docs/parameters.md, docs/messages.md, lerobot_serve/contract/records.py, the '
            'state diagrams in docs/*.md and the comments in config/*.yaml below the current '
            'folder'
        ),
    ] = False,
) -> int:
    """Print or write the pages. Raises UserError."""
    from lerobot_serve.tools.reference import diagrams
    from lerobot_serve.tools.reference.pages import (
        CLASSES,
        message_classes,
        NODES,
        PAGES,
        PARAMETER_FILES,
    )

    if not write:
        print('\n'.join(make() for make in PAGES.values()))
        return 0
    folder, config = Path('docs'), Path('config')
    if not folder.is_dir() or not config.is_dir():
        raise UserError('no folders docs and config here; run this in the root of the repository')
    pages = {folder / name: make() for name, make in PAGES.items()} | {CLASSES: message_classes()}
    files = {path: diagrams.with_comments(path.read_text(), NODES) for path in PARAMETER_FILES}
    for path, content in (diagrams.pages_with_diagrams(folder) | pages | files).items():
        path.write_text(content)
        print(f'wrote {path}')
    return 0


add_arguments, main = verb_of(docs)
