# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve replay`: sends recorded observations to a policy and compares the chunks."""

from __future__ import annotations

from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Literal

from lerobot_serve.tools.cli.arguments import Parameters
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.output.report import Report

HELP = 'send recorded observations to a policy and compare the chunks'
EXAMPLE = (
    'example: lerobot-serve replay bags/monday --kind lerobot --policy policies/v2  | exit '
    'status 0 when all chunks pass --fail-on, 1 for an unreadable recording or policy, 2 for a '
    'wrong command line, 3 when a chunk fails, 4 when there is nothing to compare'
)


def replay(
    path: Annotated[
        Path,
        Argument(
            'a bag, a capture of a server, or a server trace with trace_images: full', 'RECORDING'
        ),
    ],
    *,
    policy: Annotated[
        str, Argument('directory of the policy (config/policies/reach)', 'DIR')
    ] = '',
    kind: Annotated[str, Argument('kind of policy')] = 'builtin',
    device: Annotated[str, Argument('device of the policy')] = 'cpu',
    tolerance: Annotated[
        float,
        Argument(
            'tolerated difference of two values, relative for values above 1', bounds=(0, inf)
        ),
    ] = 1e-4,
    fail_on: Annotated[
        Literal['different', 'beyond', 'missing', 'never'],
        Argument(
            'exit status 3 when a chunk is missing; missing or beyond the tolerance; missing or '
            'not identical; or never'
        ),
    ] = 'beyond',
    parameters: Parameters = (),
    robot_type: Annotated[
        str, Argument('robot_type of the sessions, if the recording lacks it')
    ] = '',
    execution_horizon: Annotated[
        int,
        Argument(
            'execution_horizon of the edges, if the recording lacks it', bounds=(0, (1 << 32) - 1)
        ),
    ] = 0,
) -> Report:
    """
    Replay the recording. Raises BagError, IncidentError, TraceError, ReplayError, PolicyError,
    ParameterError.
    """
    from lerobot_serve.ros.package_share import shared_file
    from lerobot_serve.tools.cli.arguments import server_parameters
    from lerobot_serve.tools.cli.progress import show_count
    from lerobot_serve.tools.replay.engine import Replay
    from lerobot_serve.tools.replay.in_process_server import InProcessServer
    from lerobot_serve.tools.replay.report import replay_report
    from lerobot_serve.tools.replay.sources import open_source

    source = open_source(path)
    replayer = InProcessServer(
        server_parameters(kind, policy, device, parameters),
        str(shared_file('config/policies/reach')),
        robot_type=robot_type,
        execution_horizon=execution_horizon,
    )
    count = sum(source.policies().values())
    try:
        found = Replay(source, replayer, tolerance).run(
            partial(show_count, total=count, what='replaying')
        )
    finally:
        replayer.close()
    return replay_report(found, fail_on)


add_arguments, main = verb_of(replay)
