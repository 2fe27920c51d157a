# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve dataset`: makes a LeRobotDataset of bags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TYPE_CHECKING

from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.dataset.settings import DatasetOptions
from lerobot_serve.tools.output.report import Report

if TYPE_CHECKING:
    from lerobot_serve.tools.dataset.settings import ConversionResult

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
    options: DatasetOptions,
) -> Report:
    """Convert bags, or check a dataset. Raises UserError, BagError."""
    from dataclasses import asdict

    from lerobot_serve.errors import UserError, WrongCommandLine
    from lerobot_serve.tools.cli.progress import TerminalProgress
    from lerobot_serve.tools.dataset.checking import check_only
    from lerobot_serve.tools.dataset.convert import convert
    from lerobot_serve.tools.dataset.settings import ConversionResult

    *bags, out = paths
    if not bags and (options.append or not options.check):
        raise WrongCommandLine('name one or more bags and then the folder of the dataset')
    try:
        with TerminalProgress() as progress:
            result = (
                convert(bags, out, options, progress)
                if bags
                else ConversionResult(faults=check_only(out))
            )
    except OSError as error:
        raise UserError(f'{out} cannot be written: {error}; {remedy(out)}') from error
    lines = summary(out, result) if bags else []
    if options.check:
        lines += result.faults or [f'{out}: as many frames as rows of every camera']
    return Report(asdict(result), lines, int(bool(result.faults)), has_changed=bool(bags))


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


def summary(out: Path, result: ConversionResult) -> list[str]:
    """Return what was converted, in two lines."""
    text = f'{out}: {result.episodes} episodes added, {result.rows} rows'
    skipped = (
        (result.known, 'in the dataset before'),
        (result.filtered, 'not selected'),
        (result.without_rows, 'without rows'),
        (result.cut, 'cut'),
    )
    text += ''.join(f'; {count} {what}' for count, what in skipped if count)
    return [text, f'in all {result.total_episodes} episodes, {result.total_rows} rows']


add_arguments, main = verb_of(dataset)
