# SPDX-License-Identifier: Apache-2.0
"""
Read a trainer file: `builtin` with its options, or `command` with the words of a program.
docs/trainers.md describes it. Any thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lerobot_serve.files.load import load, parsed, Record, Refused
from lerobot_serve.files.parsing import from_yaml, shown
from lerobot_serve.learner.trainers.base import TrainerError
from lerobot_serve.learner.trainers.options import BuiltinOptions, CommandOptions

BUILTIN, COMMAND = 'builtin', 'command'


class BuiltinFile(Record, frozen=True):
    """A file with options of the built-in trainer."""

    builtin: BuiltinOptions | None


def read_trainer_file(file: Path) -> BuiltinOptions | CommandOptions:
    """Return the options in a file; ~ is the home folder. Raises TrainerError."""
    file = file.expanduser()
    try:
        return trainer_options(parsed(file, from_yaml), str(file))
    except Refused as refused:
        raise TrainerError(
            'the trainer is builtin or a trainer file, such as those in config/trainers; '
            f'{refused}'
        ) from None


def trainer_options(content: Any, place: str) -> BuiltinOptions | CommandOptions:
    """Return the options in a content. Raises Refused."""
    if not isinstance(content, dict) or (BUILTIN in content) == (COMMAND in content):
        raise Refused(
            place,
            f'must have the key {BUILTIN} (options of the built-in trainer) or {COMMAND} (the '
            f'words of a program), got {shown(content)}',
        )
    if BUILTIN in content:
        return load(BuiltinFile, content, place).builtin or BuiltinOptions()
    return load(CommandOptions, content, place)
