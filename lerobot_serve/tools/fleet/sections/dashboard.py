# SPDX-License-Identifier: Apache-2.0
"""The dashboard of a fleet file, as the verb that serves it. Pure but for the home of `~`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.dashboard.settings import LAST_PORT
from lerobot_serve.tools.fleet.fleet_file import FleetFile, Place
from lerobot_serve.tools.fleet.process import FleetProcess, Stage

SECTION, EXECUTABLE = 'dashboard', 'lerobot-serve'
TEXTS = ('address', 'site')
LISTS = ('host_name', 'connect')
PATHS = ('token_file', 'tls_certificate', 'tls_key', 'trace_folder', 'capture_folder', 'keys')
KEYS = ('port', *TEXTS, *LISTS, *PATHS)
# what the dashboard reads, and the stages whose parameter of that name it takes, the first first
READS = {
    'trace_folder': (Stage.ROUTER, Stage.ROBOT, Stage.SERVER),
    'capture_folder': (Stage.SERVER,),
}


def read_folders(processes: Iterable[FleetProcess]) -> dict[str, str]:
    """Return the folders of traces and captures that the processes of a fleet write."""
    found: dict[str, str] = {}
    processes = list(processes)
    for key, stages in READS.items():
        written = [
            process.values[key]
            for stage in stages
            for process in processes
            if process.stage is stage and process.values.get(key)
        ]
        found |= {key: str(written[0])} if written else {}
    return found


def dashboard_process(
    file: FleetFile, absolute: Callable[[str, Any], Any], folders: Mapping[str, str]
) -> FleetProcess:
    """
    Return the process; `absolute` returns a path that begins at the folder of the file, `folders`
    are those that it reads unless the file names others. Raises UserError with the place in the
    file.
    """
    place: Place = (SECTION,)
    given = file.section(place, file.content[SECTION])
    file.check_keys(place, given, KEYS)
    words = [SECTION]
    for key, value in given.items():
        try:
            words += [f'--{key.replace("_", "-")}', *_words(file, (*place, key), value, absolute)]
        except ParameterError as error:
            raise file.error((*place, key), str(error)) from None
    if ('tls_certificate' in given) is not ('tls_key' in given):
        raise file.error(place, 'tls_certificate and tls_key belong together; give both')
    for key, folder in folders.items():
        if key not in given:
            words += [f'--{key.replace("_", "-")}', folder]
    return FleetProcess(SECTION, Stage.DASHBOARD, EXECUTABLE, '', {}, command=tuple(words))


def _words(
    file: FleetFile, place: Place, value: Any, absolute: Callable[[str, Any], Any]
) -> Iterator[str]:
    key = place[-1]
    if key == 'port':
        yield str(file.whole(place, value, low=0, high=LAST_PORT))
    elif key in LISTS:
        for each in value if isinstance(value, list) else [value]:
            yield file.text(place, each)
    elif key in PATHS:
        # a name that ends as a parameter with a path does
        yield str(absolute('_file', file.text(place, value)))
    else:
        yield file.text(place, value)
