# SPDX-License-Identifier: Apache-2.0
"""Steps that change nothing: status, watch, history, and the status of the shadow."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
import sys
import threading
import time
from typing import TYPE_CHECKING

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.cli.rollout.steering import with_router
from lerobot_serve.tools.output.text import sources_line

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient
    from lerobot_serve.tools.operate.fleet_state import RouterView
    from lerobot_serve.tools.operate.rollout.rollout_watch import RolloutWatch

HOUR_S = 3600.0
# of the decisions that `watch` shows from before its start
PAST_S, PAST_SHOWN = 24 * HOUR_S, 8


def print_status(options: argparse.Namespace) -> int:
    """Print the state of the rollout and of the learners."""
    from lerobot_serve.tools.operate.learners import learner_view
    from lerobot_serve.tools.operate.operations import read_settings
    from lerobot_serve.tools.operate.rollout import rollout_view

    def operation(client: FleetClient, router: RouterView) -> int:
        settings = read_settings(client, router.name)
        shadow = client.shadow(router.name) if settings.has_shadow else None
        view = rollout_view.rollout_view(router, settings, shadow)
        learners = client.find_learners()
        sections = [rollout_view.as_text(view), learner_view.as_text(learners)]
        operator_options.print_found(
            options,
            {**rollout_view.as_json(view), 'learners': learner_view.as_json(learners)},
            lambda: '\n\n'.join(filter(None, sections)),
        )
        return 0

    return with_router(options, operation)


def print_shadow(options: argparse.Namespace) -> int:
    """Print what the shadow has shown."""
    from dataclasses import asdict

    from lerobot_serve.tools.operate.rollout import rollout_view
    from lerobot_serve.tools.operate.rollout.shadow_loading import shadow_server

    def operation(client: FleetClient, router: RouterView) -> int:
        server = shadow_server(client, router.name)
        shadow = client.shadow(router.name)
        if shadow is None:
            raise UserError(f'{router.name} publishes no comparison with its shadow {server} yet')
        operator_options.print_found(
            options,
            {'server': server, **asdict(shadow)},
            lambda: '\n'.join([f'{server}:', *rollout_view.shadow_lines(shadow)]),
        )
        return 0

    return with_router(options, operation)


def watch(options: argparse.Namespace) -> int:
    """Show the rollout until Ctrl-C or the time is over."""
    from lerobot_serve.tools.operate.rollout.rollout_watch import RolloutWatch

    def operation(client: FleetClient, router: RouterView) -> int:
        watch = RolloutWatch(client, router, as_json=options.json)
        folder = client.get_parameters(router.name, ['trace_folder'])['trace_folder']
        # a large trace takes seconds to read
        threading.Thread(
            target=add_past, args=(watch, router.name, folder), name='past', daemon=True
        ).start()
        watch.run(options.seconds)
        return 0

    return with_router(options, operation)


def add_past(watch: RolloutWatch, router: str, folder: str) -> None:
    """Give a watch the last decisions of a router, where its trace is on this machine."""
    from lerobot_serve.tools.operate.past import history, history_text
    from lerobot_serve.trace.format.schema import TraceError

    if not folder or not Path(folder).is_dir():
        return
    with contextlib.suppress(TraceError, OSError):
        found = history.read_history([folder], time.time() - PAST_S)
        latest = [each for each in found.decisions if each.router == router][-PAST_SHOWN:]
        watch.past = [history_text.decision_line(each) for each in latest]


def print_history(options: argparse.Namespace) -> int:
    """Print what the fleet did, from traces."""
    from lerobot_serve.tools.operate.past import history, history_text
    from lerobot_serve.trace.format.schema import TraceError

    since_s = options.since
    if options.hours:
        since_s = time.time() - options.hours * HOUR_S
    traces = options.traces or [_trace_folder(options)]
    try:
        found = history.read_history(traces, since_s)
    except TraceError as error:
        raise UserError(str(error)) from error
    operator_options.print_found(
        options,
        {'traces': list(map(str, traces)), **history.as_json(found)},
        lambda: f'{sources_line(traces)}\n{history_text.as_text(found)}',
    )
    return 0


def _trace_folder(options: argparse.Namespace) -> str:
    """Return the trace_folder of the router. Raises UserError when it is not on this machine."""
    folders: list[str] = []

    def operation(client: FleetClient, router: RouterView) -> int:
        folder = client.get_parameters(router.name, ['trace_folder'])['trace_folder']
        if not folder:
            raise UserError(
                f'{router.name} has no trace_folder, so its past decisions are not recorded; set '
                'trace_folder. `lerobot-serve rollout status` prints the present state'
            )
        folders.append(folder)
        return 0

    status = with_router(options, operation)
    if status:
        # the error is printed
        sys.exit(status)
    if not Path(folders[0]).is_dir():
        raise UserError(
            f'the trace_folder of the router ({folders[0]}) is not on this machine; run this '
            'there, or give a copy: lerobot-serve rollout history FOLDER'
        )
    return folders[0]
