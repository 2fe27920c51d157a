# SPDX-License-Identifier: Apache-2.0
"""
Begin and finish a rollout from the page. Servers load policies for minutes, so each runs in a
thread of its own, and the document has its newest line: `Loading`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lerobot_serve.errors import UserError
from lerobot_serve.tools.dashboard.commands import request as commands
from lerobot_serve.tools.dashboard.commands.request import CommandRequest
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve.tools.operate.outcome import Result, ResultUnknown
from lerobot_serve.tools.operate.rollout import rollouts
from lerobot_serve.tools.operate.rollout.replica_loading import ServerLoader

# as the verb waits for a server; an episode that runs in slot a may last as long as the second
LOAD_LIMIT_S, EPISODE_LIMIT_S = 300.0, 60.0
RUNS, DONE, FAILED, UNKNOWN = 'runs', 'done', 'failed', 'unknown'
STATUSES = {DONE: 200, FAILED: 409, UNKNOWN: 504}


@dataclass(frozen=True, slots=True)
class Loading:
    """One `rollout start` or `rollout finish` of the page, and the newest line about it."""

    number: int
    verb: str
    by: str
    text: str
    state: str = RUNS
    changes: tuple[str, ...] = ()


ReportStep = Callable[[Loading], object]


def without_result(begun: Loading, reason: str) -> Loading:
    """Return the end of a step about which nothing is known."""
    text = f'the result is not known ({reason}); look at the state of the router'
    return replace(begun, text=text, state=UNKNOWN)


def run_loading(
    client: FleetClient, node: str, request: CommandRequest, begun: Loading, report: ReportStep
) -> Loading:
    """Run the verb by the functions of the command line; report each step, return the end."""

    def on_step(line: str) -> None:
        report(replace(begun, text=line))

    try:
        done = _result(client, node, request, on_step)
    except (UserError, ResultUnknown) as error:
        state = UNKNOWN if isinstance(error, ResultUnknown) else FAILED
        return replace(begun, text=str(error), state=state)
    changes = tuple(done.changes)
    return replace(begun, by=done.by, text=done.text, state=DONE, changes=changes)


def _result(
    client: FleetClient, node: str, request: CommandRequest, report: Callable[[str], None]
) -> Result:
    before, loader = client.router(node), ServerLoader(client, LOAD_LIMIT_S, report)
    if request.verb == commands.START:
        steps = rollouts.parsed_plan(request.rollout_plan)
        return rollouts.start(loader, before, request.policy, steps, reason=request.reason)
    return rollouts.finish(loader, before, reason=request.reason)
