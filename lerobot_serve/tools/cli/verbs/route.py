# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve route`: prints the slot in which a split places an episode. Needs no ROS."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
import sys

from lerobot_serve.errors import WrongCommandLine

HELP = 'print the slot in which an episode is placed'
EXAMPLE = 'example: lerobot-serve route --split 80 ep_42 ep_xyz'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'episodes',
        metavar='EPISODE',
        nargs='+',
        help='an episode id; a single - reads ids from standard input, one per line',
    )
    parser.add_argument(
        '--split', type=int, required=True, help='share of episodes for slot a, 0 to 100 [%%]'
    )
    parser.add_argument('--json', action='store_true', help='print a list of JSON objects')


def main(options: argparse.Namespace) -> int:
    """Print the slots of the episodes. Raises UserError."""
    import json

    if not 0 <= options.split <= 100:
        raise WrongCommandLine(f'--split must be in [0, 100], got {options.split}')
    episodes = lines(sys.stdin.buffer) if options.episodes == ['-'] else options.episodes
    routes = [route(episode_id, options.split) for episode_id in episodes]
    print(json.dumps(routes, indent=2) if options.json else table(routes))
    return 0


def lines(file: Iterable[bytes]) -> list[str]:
    """Return the lines that are not empty. Raises UserError."""
    try:
        found = [line.rstrip(b'\r\n').decode() for line in file]
    except UnicodeDecodeError as error:
        raise WrongCommandLine(f'episode ids are UTF-8, got {error.object!r}') from error
    return [line for line in found if line]


def route(episode_id: str, split_percent: int) -> dict[str, object]:
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


def table(routes: list[dict[str, object]]) -> str:
    """Return the routes as text, with unprintable characters escaped."""
    from lerobot_serve.tools.output.text import printable

    rows = [('slot', 'bucket', 'episode')]
    for found in routes:
        key = printable(str(found['key']))
        rows.append((str(found['slot']), str(found['bucket']), key))
    return '\n'.join(f'{name:<4}  {number:>6}  {key}' for name, number, key in rows)
