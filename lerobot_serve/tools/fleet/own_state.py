# SPDX-License-Identifier: Apache-2.0
"""State folders of their own for router and robots of each fleet file. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
import hashlib
from pathlib import Path

from lerobot_serve.contract.names import file_name
from lerobot_serve.tools.fleet.plan import FleetProcess, Stage

KEY = 'state_folder'


def with_own_state(
    plan: Iterable[FleetProcess], fleet: Path, home: Path
) -> tuple[FleetProcess, ...]:
    """
    Return the plan with a state folder below `home`, ROS_HOME, for a router and robots that name
    none. The default depends on the name of a node alone: the split, the rollout and the takeovers
    of another fleet of this machine would go on in this one.
    """
    path = str(fleet.absolute())
    digest = hashlib.blake2s(path.encode(), digest_size=4).hexdigest()
    folder = home / 'lerobot_serve' / 'fleets' / f'{file_name(fleet.stem)}-{digest}'
    return tuple(_with_state(each, folder) for each in plan)


def _with_state(process: FleetProcess, folder: Path) -> FleetProcess:
    if process.stage is Stage.ROBOT:
        folder = folder / 'robots' / file_name(process.name)
    elif process.stage is not Stage.ROUTER:
        return process
    return replace(process, values={KEY: str(folder), **process.values})
