# SPDX-License-Identifier: Apache-2.0
"""The conductor of a learning loop in a fleet file, as the verb that conducts it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lerobot_serve.tools.fleet.fleet_file import FleetFile, Place
from lerobot_serve.tools.fleet.process import FleetProcess, Stage
from lerobot_serve.tools.loop.settings import LEAST_RECORDINGS

SECTION, EXECUTABLE = 'loop', 'lerobot-serve'
# their default is what the other processes of the file have
FOLDERS = ('store', 'gates', 'recordings', 'champion')
KEYS = (*FOLDERS, 'folder', 'plan', 'gate_recordings', 'robot', 'period_s')


def loop_process(
    file: FleetFile,
    absolute: Callable[[str, Any], Any],
    planned: Sequence[FleetProcess],
    namespace: str,
) -> FleetProcess:
    """
    Return the process; `planned` are the others of the file. Raises UserError with the place in
    the file.
    """
    place: Place = (SECTION,)
    given = file.section(place, file.content[SECTION])
    file.check_keys(place, given, KEYS)
    found = _folders_of(planned)
    words = ['run']
    for key in (*FOLDERS, 'folder', 'robot'):
        if key in given:
            words.append(f'--{key}={absolute("_folder", file.text((*place, key), given[key]))}')
        elif found.get(key):
            words.append(f'--{key}={found[key]}')
        elif key in FOLDERS and key != 'store':
            raise file.error(place, f'needs {key}: FOLDER; {MISSING[key]}')
    words += _numbers(file, place, given)
    if 'plan' in given:
        words.append(f'--plan={file.text((*place, "plan"), given["plan"])}')
    words += [f'--router=/{namespace}/policy_router'] if namespace else []
    return FleetProcess(SECTION, Stage.LOOP, EXECUTABLE, '', {}, command=(SECTION, *words))


MISSING = {
    'gates': 'or the router needs gate_folder',
    'recordings': 'or the file needs `record:`',
    'champion': 'or a server needs slot a',
}


def _folders_of(planned: Sequence[FleetProcess]) -> dict[str, str]:
    """Return the folders that the other processes of the file have."""
    found: dict[str, str] = {}
    for process in planned:
        values = process.values
        if process.stage is Stage.ROUTER and values.get('gate_folder'):
            found['gates'] = str(values['gate_folder'])
        elif process.stage is Stage.RECORDER:
            found['recordings'] = process.command[1]
        elif process.stage is Stage.SERVER and values.get('slot') == 'a':
            found.setdefault('champion', str(values.get('policy_path', '')))
        elif process.stage is Stage.LEARNER and values.get('store'):
            found['store'] = str(values['store'])
    return found


def _numbers(file: FleetFile, place: Place, given: dict[str, Any]) -> list[str]:
    words = []
    if 'gate_recordings' in given:
        here = (*place, 'gate_recordings')
        count = file.whole(here, given['gate_recordings'], low=LEAST_RECORDINGS, high=10_000)
        words.append(f'--gate-recordings={count}')
    if 'period_s' in given:
        value = given['period_s']
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise file.error((*place, 'period_s'), f'must be a number, got {value!r}')
        words.append(f'--period-s={value}')
    return words
