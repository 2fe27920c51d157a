# SPDX-License-Identifier: Apache-2.0
"""The settings of the loop, by command line and by fleet file. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lerobot_serve.ros_home import expanded
from lerobot_serve.tools.argument import Argument
from lerobot_serve.tools.gate.limits import GateLimits

# a bag of the strategies episodic and dagger has one episode
LEAST_RECORDINGS = GateLimits().minimum_episodes
# of a call to the router, and of one step; loading a large policy on several servers takes long
CALL_LIMIT_S, GATE_LIMIT_S, ROLLOUT_LIMIT_S = 5.0, 7200.0, 3600.0
# first and longest time until the same step may be taken again for the same version
RETRY_S, RETRY_LIMIT_S = 10.0, 600.0
JOURNAL = Path('$ROS_HOME/lerobot_serve/loop')
PATHS = ('folder', 'store', 'gates', 'recordings', 'champion', 'robot')


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """The flags of `lerobot-serve loop run`; paths become absolute."""

    folder: Annotated[Path, Argument('folder of the journal', 'FOLDER')] = JOURNAL
    store: Annotated[Path, Argument('store of the versions', 'FOLDER')] = Path(
        '$ROS_HOME/lerobot_serve/versions'
    )
    gates: Annotated[
        Path, Argument('folder of the gate records: gate_folder of the router', 'FOLDER')
    ]
    recordings: Annotated[
        Path, Argument('folder in which `lerobot-serve record` keeps bags', 'FOLDER')
    ]
    champion: Annotated[
        Path, Argument('folder of the policy that slot a serves at first', 'FOLDER')
    ]
    plan: Annotated[str, Argument('steps of each rollout')] = '25,50,100'
    gate_recordings: Annotated[
        int,
        Argument(
            'newest bags that a version is compared on', 'N', bounds=(LEAST_RECORDINGS, 10_000)
        ),
    ] = 60
    robot: Annotated[
        Path | None, Argument('robot file, where the bags lack the limits', 'FILE')
    ] = None
    period_s: Annotated[
        float, Argument('time between two looks [s]', 'N', bounds=(0.1, 3600.0))
    ] = 5.0
    # its name; empty for the only one
    router: str = ''

    def __post_init__(self) -> None:
        for name in PATHS:
            if path := getattr(self, name):
                object.__setattr__(self, name, expanded(str(path)).absolute())
