# SPDX-License-Identifier: Apache-2.0
"""The recorder of a fleet file, as the verb that records. Pure but for the home of `~`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.fleet.fleet_file import FleetFile, Place
from lerobot_serve.tools.fleet.process import FleetProcess, Stage
from lerobot_serve.tools.recorder.options import check_options

SECTION, EXECUTABLE = 'record', 'lerobot-serve'
# a recorder that is restarted goes on in its folder; `continuous` needs a new one
STRATEGIES = ('episodic', 'sentry', 'highlight', 'dagger')
TEXTS = ('strategy', 'robot')
NUMBERS = (
    *('slice_size', 'slice_time', 'keep_slices', 'before', 'after', 'divergence'),
    *('outcome_wait', 'gone_after'),
)
COUNT_LIMIT = 1_000_000


def recorder_process(
    file: FleetFile, absolute: Callable[[str, Any], Any], namespace: str
) -> FleetProcess:
    """
    Return the process; `absolute` returns a path that begins at the folder of the file. Raises
    UserError with the place in the file.
    """
    place: Place = (SECTION,)
    given = file.section(place, file.content[SECTION])
    file.check_keys(place, given, ('folder', *TEXTS, *NUMBERS))
    if 'folder' not in given:
        raise file.error(place, 'has no folder; add `folder: bags`')
    folder = str(absolute('_folder', file.text((*place, 'folder'), given['folder'])))
    strategy = given.get('strategy', STRATEGIES[0])
    if strategy not in STRATEGIES:
        listed = ', '.join(STRATEGIES)
        raise file.error((*place, 'strategy'), f'must be one of {listed}, got {strategy!r}')
    values = {'strategy': strategy}
    if 'robot' in given:
        values['robot'] = file.text((*place, 'robot'), given['robot'])
    values |= {key: _number(file, (*place, key), given[key]) for key in NUMBERS if key in given}
    try:
        check_options(values)
    except ParameterError as error:
        raise file.error(place, str(error)) from None
    flags = values | ({'namespace': namespace} if namespace else {})
    words = [f'--{key.replace("_", "-")}={value}' for key, value in flags.items()]
    return FleetProcess(
        SECTION, Stage.RECORDER, EXECUTABLE, '', {}, command=(SECTION, folder, *words)
    )


def _number(file: FleetFile, place: Place, value: Any) -> float:
    if place[-1] == 'keep_slices':
        return file.whole(place, value, low=0, high=COUNT_LIMIT)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise file.error(place, f'must be a number, got {value!r}')
    return value
