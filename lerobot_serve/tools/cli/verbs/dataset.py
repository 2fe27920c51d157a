# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve dataset`: makes a LeRobotDataset of bags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TYPE_CHECKING

from lerobot_serve.tools.cli.signature import Argument, verb_of

if TYPE_CHECKING:
    from lerobot_serve.tools.dataset.settings import ConversionResult, DatasetSettings

HELP = 'make a LeRobotDataset of bags'
EXAMPLE = (
    'example: lerobot-serve dataset bags/monday datasets/reach --filter success  | a conversion '
    'that was killed continues when it is started again; exit status 0 when every selected '
    'episode is in the dataset, 1 when there is none or something is wrong, 2 for a wrong command '
    'line'
)


def dataset(
    paths: Annotated[
        list[Path],
        Argument(
            'bags, as folders or files, and the folder of the dataset; with --check also OUT '
            'alone',
            'BAG... OUT',
        ),
    ],
    *,
    append: Annotated[bool, Argument('add to OUT, without the episodes it has')] = False,
    check: Annotated[
        bool,
        Argument('decode every frame and compare frames with rows (counted without decoding)'),
    ] = False,
    filters: Annotated[
        Sequence[str],
        Argument(
            'only episodes that are: success, failure, intervention, slot=NAME or '
            'policy=FINGERPRINT; several of one kind are alternatives, different kinds all hold',
            'WHICH',
            flags=('--filter',),
            nargs='+',
        ),
    ] = (),
    robot_name: Annotated[str, Argument('only this robot of the bags (all)')] = '',
    robot_file: Annotated[
        Path | None,
        Argument(
            'sample bags of other recorders by this robot file: its inputs, its command topic and '
            'its fps',
            'FILE',
            flags=('--robot',),
        ),
    ] = None,
    task: Annotated[str, Argument('task of episodes without one')] = '',
    vcodec: Annotated[
        Literal['h264', 'hevc', 'libsvtav1', 'png'],
        Argument(
            'encoder of the videos; png: no videos, each picture in its row, which is larger and '
            'needs no reader of videos'
        ),
    ] = 'h264',
    depth_millimetres: Annotated[
        bool,
        Argument(
            'store depth in metres (32FC1) as the nearest millimetre, 0 for no measurement '
            '(refused: LeRobot stores integers only)'
        ),
    ] = False,
) -> int:
    """Convert bags or check a dataset; return the exit status. Raises UserError, BagError."""
    from lerobot_serve.errors import UserError, WrongCommandLine
    from lerobot_serve.tools.dataset.convert import check_only
    from lerobot_serve.tools.dataset.plans.episodes import parse_filter
    from lerobot_serve.tools.dataset.settings import DatasetSettings

    *bags, out = paths
    if not bags:
        if check and not append:
            return print_faults(out, check_only(out))
        raise WrongCommandLine('name one or more bags and then the folder of the dataset')
    if robot_file and robot_name:
        raise WrongCommandLine('--robot-name is for bags with executed actions, not with --robot')
    if robot_file and filters:
        raise WrongCommandLine('--filter is for bags with executed actions, not with --robot')
    settings = DatasetSettings(
        tuple(bags),
        out,
        append=append,
        check=check,
        filters=tuple(map(parse_filter, filters)),
        robot_name=robot_name,
        robot_file=robot_file,
        task=task,
        vcodec=vcodec,
        depth_millimetres=depth_millimetres,
    )
    try:
        return convert_bags(settings)
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


def convert_bags(settings: DatasetSettings) -> int:
    """Convert; return the exit status. Raises UserError, BagError, OSError."""
    from lerobot_serve.tools.cli.conversion_progress import ConversionProgress
    from lerobot_serve.tools.dataset.convert import convert

    progress = ConversionProgress()
    try:
        result = convert(settings, progress)
    finally:
        progress.end()
    print(summary(settings.out, result))
    if result.faults or settings.check:
        return print_faults(settings.out, result.faults)
    return 0


def summary(out: Path, result: ConversionResult) -> str:
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


add_arguments, main = verb_of(dataset)
