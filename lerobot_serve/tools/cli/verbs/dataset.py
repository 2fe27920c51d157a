# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve dataset`: makes a LeRobotDataset of bags."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lerobot_serve.tools.dataset.settings import Result, Settings

HELP = 'make a LeRobotDataset of bags'
EXAMPLE = (
    'example: lerobot-serve dataset bags/monday datasets/reach --filter success  | a conversion '
    'that was killed goes on when it is started again; exit status 0 when every selected episode '
    'is in the dataset, 1 when there is none or something is wrong, 2 for a wrong command line'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'paths',
        metavar='BAG... OUT',
        nargs='+',
        type=Path,
        help='bags, as folders or files, and the folder of the dataset; with --check also OUT '
        'alone',
    )
    parser.add_argument(
        '--append', action='store_true', help='add to OUT, without the episodes it has'
    )
    parser.add_argument(
        '--check',
        action='store_true',
        help='decode every frame and compare frames with rows (counted without decoding)',
    )
    parser.add_argument(
        '--filter',
        dest='filters',
        metavar='WHICH',
        nargs='+',
        action='extend',
        default=[],
        help='only episodes that are: success, failure, intervention, slot=NAME or '
        'policy=FINGERPRINT; several of one kind are alternatives, different kinds all hold',
    )
    parser.add_argument('--robot-name', default='', help='only this robot of the bags (all)')
    parser.add_argument(
        '--robot',
        dest='robot_file',
        metavar='FILE',
        type=Path,
        help='sample bags of other recorders by this robot file: its inputs, its command topic '
        'and its fps',
    )
    parser.add_argument('--task', default='', help='task of episodes without one')
    parser.add_argument(
        '--vcodec',
        choices=('h264', 'hevc', 'libsvtav1', 'png'),
        default='h264',
        help='encoder of the videos; png: no videos, each picture in its row, which is larger and '
        'needs no reader of videos (h264)',
    )
    parser.add_argument(
        '--depth-millimetres',
        action='store_true',
        help='store depth in metres (32FC1) as the nearest millimetre, 0 for no measurement '
        '(refused: LeRobot stores integers only)',
    )


def main(options: argparse.Namespace) -> int:
    """Convert bags or check a dataset; return the exit status. Raises UserError."""
    from lerobot_serve.errors import UserError, WrongCommandLine
    from lerobot_serve.tools.bags.message import BagError
    from lerobot_serve.tools.dataset.convert import check_only

    *bags, out = options.paths
    if not bags:
        if options.check and not options.append:
            return print_faults(out, check_only(out))
        raise WrongCommandLine('name one or more bags and then the folder of the dataset')
    try:
        return convert_bags(settings_of(options, bags, out))
    except BagError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f'{out} cannot be written: {error}; {remedy(out)}') from error


def remedy(out: Path) -> str:
    """Return what to do after the system refused to write a dataset."""
    import shutil

    try:
        free_mb = shutil.disk_usage(out.parent).free // 1_000_000
    except OSError:
        return 'start the same command again'
    # LeRobot drops a picture that finds no room, and what is missed then is a file
    space = f'{free_mb} MB are free there now, and twice the dataset is needed while episodes join'
    staging = out.with_name(f'{out.name}.staging')
    kept = f'; whole episodes are kept in {staging}' if staging.exists() else ''
    return f'{space}{kept}; start the same command again'


def settings_of(options: argparse.Namespace, bags: list[Path], out: Path) -> Settings:
    """Return the settings of a conversion. Raises WrongCommandLine."""
    from lerobot_serve.errors import WrongCommandLine
    from lerobot_serve.tools.dataset.plans.episodes import parse_filter
    from lerobot_serve.tools.dataset.settings import Settings

    if options.robot_file and options.robot_name:
        raise WrongCommandLine('--robot-name is for bags with executed actions, not with --robot')
    if options.robot_file and options.filters:
        raise WrongCommandLine('--filter is for bags with executed actions, not with --robot')
    return Settings(
        tuple(bags),
        out,
        append=options.append,
        check=options.check,
        filters=tuple(parse_filter(text) for text in options.filters),
        robot_name=options.robot_name,
        robot_file=options.robot_file,
        task=options.task,
        vcodec=options.vcodec,
        depth_millimetres=options.depth_millimetres,
    )


def convert_bags(settings: Settings) -> int:
    """Convert; return the exit status. Raises UserError, BagError, OSError."""
    from lerobot_serve.tools.cli.conversion_progress import ConversionProgress
    from lerobot_serve.tools.dataset.convert import convert
    from lerobot_serve.tools.dataset.ros import message_values

    progress = ConversionProgress()
    try:
        result = convert(settings, message_values, progress)
    finally:
        progress.end()
    print(summary(settings.out, result))
    if result.faults or settings.check:
        return print_faults(settings.out, result.faults)
    return 0


def summary(out: Path, result: Result) -> str:
    """Return what was converted, in a line or two."""
    text = f'{out}: {result.episodes} episodes added, {result.rows} rows'
    skipped = (
        (result.known, 'in the dataset before'),
        (result.filtered, 'not selected'),
        (result.without_rows, 'without rows'),
        (result.cut, 'cut'),
    )
    text += ''.join(f'; {count} {what}' for count, what in skipped if count)
    return f'{text}\nin all {result.total_episodes} episodes, {result.total_rows} rows'


def print_faults(out: Path, faults: list[str]) -> int:
    for fault in faults:
        print(fault)
    if not faults:
        print(f'{out}: as many frames as rows of every camera')
    return int(bool(faults))
