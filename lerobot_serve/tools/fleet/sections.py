# SPDX-License-Identifier: Apache-2.0
"""
The sections of a fleet file: keys of servers and robots beside their parameters; dashboard,
recorder and conductor as the verbs that they are; what a learner takes from other processes.
Pure but for the home of `~`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, UNSET, UnsetType

from lerobot_serve.files.load import Record
from lerobot_serve.tools.dashboard.settings import LAST_PORT
from lerobot_serve.tools.fleet.fleet_file import FleetFile, one_of, Place, Section, Text, whole
from lerobot_serve.tools.fleet.process import FleetProcess, Stage
from lerobot_serve.tools.loop.settings import LEAST_RECORDINGS
from lerobot_serve.tools.recorder.options import (
    check_options,
    CONTINUOUS,
    flag,
    SLICES,
    STRATEGIES,
)

VERB = 'lerobot-serve'
OptionalNumber = Annotated[int | float, Meta(description='a number')] | UnsetType
OptionalText = Text | UnsetType
Texts = Annotated[str | list[Text], Meta(description='a text, or a list of texts')] | UnsetType


class ServerKeys(Struct, frozen=True):
    """The keys of a server that are not its parameters."""

    policy: Text | UnsetType = UNSET
    slot: Annotated[str, one_of(('prod', 'a', 'b', 'shadow'))] = 'prod'
    replicas: Annotated[int, whole(1, 64)] = 1


class LocalKeys(Struct, frozen=True):
    """The keys of a policy server on a robot that are not its parameters."""

    policy: Text | UnsetType = UNSET


class RobotKeys(Struct, frozen=True):
    """The keys of a robot that are not its parameters."""

    robot: Text | UnsetType = UNSET
    simulated: bool = False
    simulation: Section | UnsetType = UNSET
    local: Section | UnsetType = UNSET


class RobotCount(Struct, frozen=True):
    """How many robots one section describes."""

    count: Annotated[int, whole(1, 200)] = 1


class NoKeys(Struct, frozen=True):
    """A section of parameters alone."""


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


def dashboard_process(
    file: FleetFile, given: dict[str, Any] | None, planned: Sequence[FleetProcess]
) -> FleetProcess:
    """Return the process. Raises UserError with the place in the file."""
    own = _given(file, Dashboard, given, ('dashboard',), PATHS)
    # in the order of the file
    values = {key: own[key] for key in given or ()}
    for key, stages in READS.items():
        if key not in values and (folder := _value_of(planned, key, *stages)):
            values[key] = folder
    words = ['dashboard']
    for key, value in values.items():
        words += [flag(key), *(value if isinstance(value, list) else [str(value)])]
    return _verb(Stage.DASHBOARD, words)


def _given(
    file: FleetFile,
    kind: type[Struct],
    given: dict[str, Any] | None,
    place: Place,
    paths: Sequence[str],
) -> dict[str, Any]:
    """Return what a section has; a path begins at the folder of the file. Raises UserError."""
    found = msgspec.structs.asdict(file.load(kind, given, place))
    values = {key: value for key, value in found.items() if value is not UNSET}
    return values | {key: file.path((*place, key), values[key]) for key in paths if key in values}


def _value_of(
    planned: Iterable[FleetProcess], key: str, *stages: Stage, slots: Sequence[str] = ()
) -> str:
    """Return the first value that a process of these stages and slots has, '' for none."""
    found = (
        each.values[key]
        for stage in stages
        for each in planned
        if each.stage is stage and (not slots or each.values.get('slot') in slots)
        if each.values.get(key)
    )
    return str(next(found, ''))


def _verb(stage: Stage, words: Sequence[str], **values: str) -> FleetProcess:
    """Return a verb as a process; `values` are what other processes take from it."""
    return FleetProcess(words[0], stage, VERB, '', values, command=tuple(words))


# a recorder that is restarted continues in its folder; `continuous` needs a new one
IN_FLEETS = tuple(name for name in STRATEGIES if name != CONTINUOUS)


class Recording(Record, frozen=True, kw_only=True):
    """The flags of the verb; a fleet is recorded until it ends: without max_size and duration."""

    folder: OptionalText = UNSET
    strategy: Annotated[str, one_of(IN_FLEETS)] = IN_FLEETS[0]
    robot: OptionalText = UNSET
    slice_size: OptionalNumber = UNSET
    slice_time: OptionalNumber = UNSET
    keep_slices: Annotated[int, whole(*SLICES)] | UnsetType = UNSET
    before: OptionalNumber = UNSET
    after: OptionalNumber = UNSET
    divergence: OptionalNumber = UNSET
    outcome_wait: OptionalNumber = UNSET
    gone_after: OptionalNumber = UNSET


def recorder_process(
    file: FleetFile, given: dict[str, Any] | None, namespace: str
) -> FleetProcess:
    """Return the process. Raises UserError with the place in the file."""
    values = _given(file, Recording, given, ('record',), ('folder',))
    if 'folder' not in values:
        raise file.error(('record',), 'has no folder; add `folder: bags`')
    folder = values.pop('folder')
    with file.at(('record',)):
        check_options(values)
    flags = values | ({'namespace': namespace} if namespace else {})
    words = [f'{flag(key)}={value}' for key, value in flags.items()]
    return _verb(Stage.RECORDER, ['record', folder, *words], folder=folder)


def learner_values(
    file: FleetFile, values: dict[str, Any], planned: Sequence[FleetProcess], namespace: str
) -> dict[str, Any]:
    """
    Return the parameters of the learner: paths begin at the folder of the file, and what is not
    given is that of the recorder, of the champion and of the router. Raises UserError.
    """
    found: dict[str, Any] = {}
    if parent := _value_of(planned, 'policy_path', Stage.SERVER, slots=('a', 'prod')):
        found['parent'] = parent
    if folder := _value_of(planned, 'folder', Stage.RECORDER):
        found['episode_folders'] = (folder,)
    found |= values
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
    period_s: OptionalNumber = UNSET
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
    own = _given(file, Loop, given, place, LOOP_PATHS)
    taken = {
        'store': _value_of(planned, 'store', Stage.LEARNER),
        'gates': _value_of(planned, 'gate_folder', Stage.ROUTER),
        'recordings': _value_of(planned, 'folder', Stage.RECORDER),
        'champion': _value_of(planned, 'policy_path', Stage.SERVER, slots=('a',)),
    }
    values = {key: value for key, value in taken.items() if value} | own
    for key, remedy in NEEDED.items():
        if key not in values:
            raise file.error(place, f'needs {key}: FOLDER; {remedy}')
    words = [f'{flag(k)}={values[k]}' for k in Loop.__struct_fields__ if k in values]
    words += [f'--router=/{namespace}/policy_router'] if namespace else []
    return _verb(Stage.LOOP, ['loop', 'run', *words])
