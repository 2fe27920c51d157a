# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve doctor`: checks machine, policy, robot file, ROS graph and Zenoh link."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import os
import sys
from typing import Annotated, TYPE_CHECKING

from lerobot_serve.tools.cli.arguments import Endpoints, LinkOptions
from lerobot_serve.tools.cli.signature import Argument, number, verb_of
from lerobot_serve.tools.output.report import Report

if TYPE_CHECKING:
    from lerobot_serve.tools.doctor.finding import Finding

HELP = 'check machine, policy, robot file, ROS graph and Zenoh link; print remedies'
EXAMPLE = (
    'example: lerobot-serve doctor /models/act --robot my_robot.yaml --parameter trained_fps=30  '
    '| exit status 0 without a failure (warnings allowed), 1 with one, 2 for a wrong command '
    'line'
)
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2


def namespace_argument(given: str) -> str:
    """Check a namespace. Raises ArgumentTypeError."""
    from lerobot_serve.contract.names import is_topic

    name = '/' + given.strip('/')
    if name != '/' and not is_topic(name):
        text = f'must be like /robot_1, of letters, digits and single _, got {given!r}'
        raise argparse.ArgumentTypeError(text)
    return name


def doctor(
    policy: Annotated[str, Argument('directory of a policy', 'POLICY_DIR')] = '',
    *,
    robot: Annotated[str, Argument('robot file of the edge (robot_file)', 'FILE')] = '',
    kind: Annotated[
        str,
        Argument(
            'kind of policy: builtin, exported, lerobot or one of another package (detected)'
        ),
    ] = '',
    device: Annotated[str, Argument('device of the policy')] = 'cpu',
    parameters: Annotated[
        Sequence[str],
        Argument(
            'further parameter of the policy_server, for example trained_fps=30',
            'NAME=VALUE',
            flags=('--parameter',),
        ),
    ] = (),
    namespace: Annotated[
        str,
        Argument(
            'namespace of the edge_controller, for relative topics', 'NAME', namespace_argument
        ),
    ] = '/',
    wait_s: Annotated[
        float,
        Argument(
            'time limit for topics and nodes, and time to watch the link [s]',
            'S',
            number('s', 60.0),
        ),
    ] = 2.0,
    connect: Annotated[
        Endpoints,
        Argument(
            'check a link over Zenoh: endpoints of servers and routers', 'ENDPOINT', nargs='+'
        ),
    ] = (),
    link: LinkOptions,
) -> Report:
    """Run the checks. Raises ParameterError for a wrong --parameter."""
    with stdout_to_stderr():
        from lerobot_serve.tools.cli.arguments import server_parameters
        from lerobot_serve.tools.doctor import examination
        from lerobot_serve.tools.doctor.finding import doctor_report

        is_requested = bool(policy or kind)
        unknown: tuple[Finding, ...] = ()
        if policy:
            policy, unknown = examination.find_folder(policy, kind)
        if policy and not kind:
            kind, unknown = examination.find_kind(policy)
        # reject a wrong --parameter before the slow checks
        given = server_parameters(kind, policy, device, parameters)
        request = examination.ExaminationRequest(
            parameters=given if is_requested else None,
            unknown=unknown,
            robot_file=robot,
            namespace=namespace,
            wait_s=wait_s,
            link=link.settings(connect),
            link_client=link.client,
            link_servers=tuple(link.servers),
        )
        return doctor_report(examination.run_checks(request))


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect the output of middleware and libraries to standard error."""
    sys.stdout.flush()
    kept = os.dup(STANDARD_OUTPUT)
    os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, STANDARD_OUTPUT)
        os.close(kept)


add_arguments, main = verb_of(doctor)
