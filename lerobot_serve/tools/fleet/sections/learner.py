# SPDX-License-Identifier: Apache-2.0
"""The learner of a fleet file: what it takes from the other processes of the file. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lerobot_serve.tools.fleet.process import FleetProcess, Stage

SECTION, EXECUTABLE = 'learner', 'learner'
BUILTIN = 'builtin'


def learner_values(
    values: dict[str, Any],
    absolute: Callable[[str, Any], Any],
    planned: Sequence[FleetProcess],
    namespace: str,
) -> dict[str, Any]:
    """
    Return the parameters of the learner: paths begin at the folder of the file (`absolute`), and
    what is not given is that of the recorder, of the champion and of the router.
    """
    found = _of_others(planned) | values
    for name in ('store', 'folder'):
        if found.get(name):
            found[name] = absolute('_folder', found[name])
    # a version of the store is no path
    if '/' in found.get('parent', ''):
        found['parent'] = absolute('_folder', found['parent'])
    if found.get('trainer', BUILTIN) != BUILTIN:
        found['trainer'] = absolute('_file', found['trainer'])
    folders = found.get('episode_folders', ())
    found['episode_folders'] = tuple(absolute('_folder', each) for each in folders)
    if namespace and 'router' not in values:
        found['router'] = f'/{namespace}/policy_router'
    return found


def _of_others(planned: Sequence[FleetProcess]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for process in planned:
        if process.stage is Stage.RECORDER:
            found['episode_folders'] = (process.command[1],)
        elif process.stage is Stage.SERVER and process.values.get('slot') in ('a', 'prod'):
            found.setdefault('parent', str(process.values.get('policy_path', '')))
    return {name: value for name, value in found.items() if value}
