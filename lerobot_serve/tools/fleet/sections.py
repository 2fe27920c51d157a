# SPDX-License-Identifier: Apache-2.0
"""
The sections of a fleet file besides servers, router, gateway and robots: dashboard, recorder and
conductor as the verbs that they are, and what a learner takes from the other processes. Pure but
for the home of `~`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, UNSET, UnsetType

from lerobot_serve.files.load import Record
from lerobot_serve.tools.dashboard.settings import LAST_PORT
from lerobot_serve.tools.fleet.fleet_file import FleetFile, one_of, Text, whole
from lerobot_serve.tools.fleet.process import FleetProcess, Stage
from lerobot_serve.tools.loop.settings import LEAST_RECORDINGS
from lerobot_serve.tools.recorder.options import (
    check_options,
    CONTINUOUS,
    flag,
    OPTIONS,
    STRATEGIES,
)

VERB = 'lerobot-serve'
Number = Annotated[int | float, Meta(description='a number')]
OptionalText = Text | UnsetType
Texts = Annotated[str | list[Text], Meta(description='a text, or a list of texts')] | UnsetType


class Dashboard(Record, frozen=True):
    """The flags of the verb, in words."""

    port: Annotated[int, whole(0, LAST_PORT)] | UnsetType = UNSET
    address: OptionalText = UNSET
    site: OptionalText = UNSET
    host_name: Texts = UNSET
    connect: Texts = UNSET
    token_file: OptionalText = UNSET
    tls_certificate: OptionalText = UNSET
    tls_key: OptionalText = UNSET
    trace_folder: OptionalText = UNSET
    capture_folder: OptionalText = UNSET
    keys: OptionalText = UNSET

    def __post_init__(self) -> None:
        if bool(self.tls_certificate) is not bool(self.tls_key):
            raise ValueError('tls_certificate and tls_key belong together; give both')


# the keys of a dashboard that are paths
PATHS = ('token_file', 'tls_certificate', 'tls_key', 'trace_folder', 'capture_folder', 'keys')
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
    file: FleetFile, given: dict[str, Any] | None, folders: Mapping[str, str]
) -> FleetProcess:
    """
    Return the process; `folders` are those that it reads unless the file names others. Raises
    UserError with the place in the file.
    """
    found = file.load(Dashboard, given, ('dashboard',))
    words = ['dashboard']
    for key in given or ():
        value = getattr(found, key)
        if key in PATHS:
            value = file.path(('dashboard', key), value)
        words += [flag(key), *(value if isinstance(value, list) else [str(value)])]
    for key, folder in folders.items():
        if not getattr(found, key):
            words += [flag(key), folder]
    return FleetProcess('dashboard', Stage.DASHBOARD, VERB, '', {}, command=tuple(words))


# a recorder that is restarted goes on in its folder; `continuous` needs a new one
IN_FLEETS = tuple(name for name in STRATEGIES if name != CONTINUOUS)


# a fleet is recorded until it ends: without max_size and duration
Recording = msgspec.defstruct(
    'Recording',
    [
        ('folder', Text, UNSET),
        ('strategy', Annotated[str, one_of(IN_FLEETS)], IN_FLEETS[0]),
        ('robot', Text, UNSET),
        *(
            (name, Annotated[int, whole(each.low, each.high)] if each.is_whole else Number, UNSET)
            for name, each in OPTIONS.items()
            if each.strategies
        ),
    ],
    bases=(Record,),
    frozen=True,
    kw_only=True,
)


def recorder_process(
    file: FleetFile, given: dict[str, Any] | None, namespace: str
) -> FleetProcess:
    """Return the process. Raises UserError with the place in the file."""
    found = msgspec.structs.asdict(file.load(Recording, given, ('record',)))
    values = {key: value for key, value in found.items() if value is not UNSET}
    if 'folder' not in values:
        raise file.error(('record',), 'has no folder; add `folder: bags`')
    folder = file.path(('record', 'folder'), values.pop('folder'))
    with file.at(('record',)):
        check_options(values)
    flags = values | ({'namespace': namespace} if namespace else {})
    words = [f'{flag(key)}={value}' for key, value in flags.items()]
    return FleetProcess('record', Stage.RECORDER, VERB, '', {}, command=('record', folder, *words))


def learner_values(
    file: FleetFile, values: dict[str, Any], planned: Sequence[FleetProcess], namespace: str
) -> dict[str, Any]:
    """
    Return the parameters of the learner: paths begin at the folder of the file, and what is not
    given is that of the recorder, of the champion and of the router. Raises UserError.
    """
    found: dict[str, Any] = {}
    for process in planned:
        if process.stage is Stage.RECORDER:
            found['episode_folders'] = (process.command[1],)
        elif process.stage is Stage.SERVER and process.values.get('slot') in ('a', 'prod'):
            found.setdefault('parent', str(process.values.get('policy_path', '')))
    found = {name: value for name, value in found.items() if value} | values
    for name in ('store', 'folder', 'parent', 'trainer'):
        value = found.get(name, '')
        # neither a version of the store nor the built-in trainer is a path
        is_path = '/' in value if name == 'parent' else value not in ('', 'builtin')
        if is_path:
            found[name] = file.path(('learner', name), value)
    folders = found.get('episode_folders', ())
    here = ('learner', 'episode_folders')
    found['episode_folders'] = tuple(file.path(here, each) for each in folders)
    if namespace and 'router' not in values:
        found['router'] = f'/{namespace}/policy_router'
    return found


class Loop(Record, frozen=True):
    """The flags of the verb; the default of the first four is what the other processes have."""

    store: OptionalText = UNSET
    gates: OptionalText = UNSET
    recordings: OptionalText = UNSET
    champion: OptionalText = UNSET
    folder: OptionalText = UNSET
    robot: OptionalText = UNSET
    gate_recordings: Annotated[int, whole(LEAST_RECORDINGS, 10_000)] | UnsetType = UNSET
    period_s: Number | UnsetType = UNSET
    plan: OptionalText = UNSET


LOOP_PATHS = ('store', 'gates', 'recordings', 'champion', 'folder', 'robot')
NEEDED = {
    'gates': 'or the router needs gate_folder',
    'recordings': 'or the file needs `record:`',
    'champion': 'or a server needs slot a',
}


def loop_process(
    file: FleetFile,
    given: dict[str, Any] | None,
    planned: Sequence[FleetProcess],
    namespace: str,
) -> FleetProcess:
    """
    Return the process; `planned` are the others of the file. Raises UserError with the place in
    the file.
    """
    place = ('loop',)
    own = msgspec.structs.asdict(file.load(Loop, given, place))
    values = {key: value for key, value in own.items() if value is not UNSET}
    for key in values.keys() & {*LOOP_PATHS}:
        values[key] = file.path((*place, key), values[key])
    values = _folders_of(planned) | values
    for key, remedy in NEEDED.items():
        if key not in values:
            raise file.error(place, f'needs {key}: FOLDER; {remedy}')
    words = [f'{flag(key)}={values[key]}' for key in own if key in values]
    words += [f'--router=/{namespace}/policy_router'] if namespace else []
    return FleetProcess('loop', Stage.LOOP, VERB, '', {}, command=('loop', 'run', *words))


def _folders_of(planned: Sequence[FleetProcess]) -> dict[str, str]:
    """Return the folders that the other processes of the file have."""
    found: dict[str, str] = {}
    for process in planned:
        values = process.values
        if process.stage is Stage.ROUTER:
            found['gates'] = str(values.get('gate_folder', ''))
        elif process.stage is Stage.RECORDER:
            found['recordings'] = process.command[1]
        elif process.stage is Stage.SERVER and values.get('slot') == 'a':
            found.setdefault('champion', str(values.get('policy_path', '')))
        elif process.stage is Stage.LEARNER:
            found['store'] = str(values.get('store', ''))
    return {key: folder for key, folder in found.items() if folder}
