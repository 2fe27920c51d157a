# SPDX-License-Identifier: Apache-2.0
"""The recorder of a fleet file, as the verb that records. Pure but for the home of `~`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.fleet.fleet_file import FleetFile, Place
from lerobot_serve.tools.fleet.process import FleetProcess, Stage
from lerobot_serve.tools.recorder.options import (
    check_options,
    CONTINUOUS,
    flag,
    OPTIONS,
    STRATEGIES,
)

SECTION, EXECUTABLE = 'record', 'lerobot-serve'
# a recorder that is restarted goes on in its folder; `continuous` needs a new one
IN_FLEETS = tuple(name for name in STRATEGIES if name != CONTINUOUS)
TEXTS = ('strategy', 'robot')
# a fleet is recorded until it ends: without max_size and duration
NUMBERS = tuple(name for name, option in OPTIONS.items() if option.strategies)


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
    strategy = given.get('strategy', IN_FLEETS[0])
    if strategy not in IN_FLEETS:
        listed = ', '.join(IN_FLEETS)
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
    words = [f'{flag(key)}={value}' for key, value in flags.items()]
    return FleetProcess(
        SECTION, Stage.RECORDER, EXECUTABLE, '', {}, command=(SECTION, folder, *words)
    )


def _number(file: FleetFile, place: Place, value: Any) -> float:
    option = OPTIONS[place[-1]]
    if option.is_whole:
        return file.whole(place, value, low=int(option.low), high=int(option.high))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise file.error(place, f'must be a number, got {value!r}')
    return value
