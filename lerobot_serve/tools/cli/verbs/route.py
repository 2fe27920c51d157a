# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve route`: prints the slot in which a split places an episode. Needs no ROS."""

from __future__ import annotations

from collections.abc import Iterable
import sys
from typing import Annotated, Any

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.output.report import Report, Table
from lerobot_serve.tools.output.text import printable

HELP = 'print the slot in which an episode is placed'
EXAMPLE = 'example: lerobot-serve route --split 80 ep_42 ep_xyz'


def route(
    episodes: Annotated[
        list[str],
        Argument(
            'an episode id; a single - reads ids from standard input, one per line', 'EPISODE'
        ),
    ],
    *,
    split: Annotated[int, Argument('share of episodes for slot a, 0 to 100 [%]', bounds=(0, 100))],
) -> Report:
    """Return the slots of the episodes. Raises WrongCommandLine."""
    given = lines(sys.stdin.buffer) if episodes == ['-'] else episodes
    routes = [placement(episode_id, split) for episode_id in given]
    rows = [(found['slot'], str(found['bucket']), printable(found['key'])) for found in routes]
    return Report(
        {'episodes': routes},
        [Table(('slot', 'bucket', 'episode'), rows, right=[1], least_widths=(4, 6))],
    )


def lines(file: Iterable[bytes]) -> list[str]:
    """Return the lines that are not empty. Raises UserError."""
    try:
        found = [line.rstrip(b'\r\n').decode() for line in file]
    except UnicodeDecodeError as error:
        raise WrongCommandLine(f'episode ids are UTF-8, got {error.object!r}') from error
    return [line for line in found if line]


def placement(episode_id: str, split_percent: int) -> dict[str, Any]:
    """Return the placement of a new episode by a router with this split. Raises UserError."""
    from lerobot_serve.router.placement.split import bucket, slot

    if not episode_id:
        raise WrongCommandLine(
            'EPISODE must not be empty: requests without an id are placed individually'
        )
    try:
        number = bucket(episode_id)
    except UnicodeEncodeError as error:
        raise WrongCommandLine(f'episode ids are UTF-8, got {episode_id!r}') from error
    return {
        'key': episode_id,
        'bucket': number,
        'slot': slot(number, split_percent),
        'split_percent': split_percent,
    }


add_arguments, main = verb_of(route)
