# SPDX-License-Identifier: Apache-2.0
"""
Steps of `lerobot-serve rollout`: those that change nothing (status, watch, history), and those
that are one command of the router. Each returns its exit status. Imports ROS in functions only;
the main thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import contextlib
from pathlib import Path
import threading
import time
from typing import Annotated, TYPE_CHECKING

from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.cli.operator_options import (
    find_router,
    Fleet,
    found_traces,
    Operator,
    Reason,
    RouterName,
)
from lerobot_serve.tools.cli.signature import Argument, number
from lerobot_serve.tools.operate.rule import Verb
from lerobot_serve.tools.output.report import Report

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.rollout.rollout_watch import RolloutWatch


HOUR_S, HOURS_LIMIT = 3600.0, 87600.0
# of the decisions that `watch` shows from before its start
PAST_S, PAST_SHOWN = 24 * HOUR_S, 8


def since_argument(given: str) -> float:
    """Parse a local time, or one with an offset, into seconds. Raises ArgumentTypeError."""
    from lerobot_serve.tools.output.text import DAY_S, parse_time_of_day, resolve_within

    now_s = time.time()
    try:
        return resolve_within(parse_time_of_day(given), now_s - DAY_S, now_s)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'must be a local time such as 18:30, 2026-11-22 or 2026-11-22T18:30, got {given}'
        ) from None


def status(*, router: RouterName = '', fleet: Fleet) -> Report:
    """Print plan, step, evidence and guards. Raises UserError."""
    from lerobot_serve.tools.operate.operations import read_settings
    from lerobot_serve.tools.operate.rollout.rollout_view import rollout_report

    with fleet.client() as client:
        state = find_router(client, router)
        settings = read_settings(client, state.name)
        shadow = client.shadow(state.name) if settings.shadow_server else None
        return rollout_report(state, settings, shadow, client.find_learners())


def watch(
    *,
    router: RouterName = '',
    fleet: Fleet,
    json: Annotated[bool, Argument('print a JSON object')] = False,
    seconds: Annotated[
        float | None,
        Argument('how long to watch [s] (until Ctrl-C)', 'N', operator_options.seconds),
    ] = None,
) -> int:
    """Show the status live, or a line for each change. Raises UserError."""
    from lerobot_serve.tools.operate.rollout.rollout_watch import RolloutWatch

    with fleet.client() as client:
        state = find_router(client, router)
        shown = RolloutWatch(client, state, as_json=json)
        folder = client.get_parameters(state.name, ['trace_folder'])['trace_folder']
        # a large trace takes seconds to read
        threading.Thread(
            target=add_past, args=(shown, state.name, folder), name='past', daemon=True
        ).start()
        shown.run(seconds)
    return 0


def add_past(watch: RolloutWatch, router: str, folder: str) -> None:
    """Give a watch the last decisions of a router, where its trace is on this machine."""
    from lerobot_serve.tools.operate.rollout import history
    from lerobot_serve.trace.format.run_files import TraceError

    if not folder or not Path(folder).is_dir():
        return
    with contextlib.suppress(TraceError, OSError):
        found = history.read_history([folder], time.time() - PAST_S)
        latest = [each for each in found.decisions if each.router == router][-PAST_SHOWN:]
        watch.past = [history.decision_line(each) for each in latest]


def history(
    traces: Annotated[
        Sequence[str],
        Argument(
            'traces of routers, servers and robots (the trace_folder of the router)', 'FOLDER'
        ),
    ] = (),
    *,
    hours: Annotated[
        float | None,
        Argument('only the last N hours (all)', 'N', number('h', HOURS_LIMIT), either='time'),
    ] = None,
    since: Annotated[
        float | None,
        Argument(
            'only since a local time: 18:30 (the last one), 2026-11-22 or 2026-11-22T18:30',
            'TIME',
            since_argument,
            either='time',
        ),
    ] = None,
    router: RouterName = '',
    fleet: Fleet,
) -> Report:
    """Print what the fleet did, from the traces. Raises UserError, TraceError."""
    from lerobot_serve.tools.operate.rollout.history import history_report, read_history

    since_s = time.time() - hours * HOUR_S if hours else since
    traces = found_traces(traces, fleet, router, 'rollout history')
    return history_report(read_history(traces, since_s), traces)


def pause(*, reason: Reason = '', router: RouterName = '', operator: Operator) -> Report:
    """Keep the share; guards still roll back. Raises UserError, ResultUnknown."""
    return steer(Verb.PAUSE, reason, router, operator)


def resume(*, reason: Reason = '', router: RouterName = '', operator: Operator) -> Report:
    """
    Continue a paused rollout; after a rollback lift the verdict and start again. Raises as pause.
    """
    return steer(Verb.RESUME, reason, router, operator)


def promote(*, reason: Reason = '', router: RouterName = '', operator: Operator) -> Report:
    """To the next step, or to 100 %, without waiting for the comparison. Raises as pause."""
    return steer(Verb.PROMOTE, reason, router, operator)


def abort(
    *,
    now: Annotated[
        bool,
        Argument('running episodes leave with their next request instead of at their end'),
    ] = False,
    reason: Reason = '',
    router: RouterName = '',
    operator: Operator,
) -> Report:
    """Roll back: all new episodes to slot a, the candidate is barred. Raises as pause."""
    return steer(Verb.ABORT, reason, router, operator, at_once=now)


def undo(*, reason: Reason = '', router: RouterName = '', operator: Operator) -> Report:
    """End a pause, or lift the verdict of a rollback. Raises as pause."""
    return steer(Verb.UNDO, reason, router, operator)


def steer(
    step: Verb, reason: str, router: str, operator: Operator, *, at_once: bool = False
) -> Report:
    """Run a step that is one command of the router. Raises UserError, ResultUnknown."""
    from lerobot_serve.tools.operate.operations import read_settings, run_rule
    from lerobot_serve.tools.operate.rollout.steering import steered_slot, steering_rule

    verb = f'rollout {step.value}'
    return operator.on_router(
        router,
        verb,
        lambda client, state: steering_rule(
            step, state, lambda: read_settings(client, state.name).plan, at_once=at_once
        ),
        lambda client, now, rule: run_rule(
            client,
            now,
            rule,
            verb=verb,
            slot=steered_slot(step, now),
            at_once=at_once,
            reason=reason,
        ).report(),
    )


def stop(*, reason: Reason = '', router: RouterName = '', operator: Operator) -> Report:
    """Remove the plan without a verdict. All new episodes go to slot a. Raises as pause."""
    from lerobot_serve.tools.operate.commands import rollout_rule
    from lerobot_serve.tools.operate.rollout import rollouts

    return operator.on_router(
        router,
        'rollout stop',
        lambda _, state: rollout_rule(Verb.STOP, state.canary),
        lambda client, now, _: rollouts.stop(client, now, reason).report(),
    )
