# SPDX-License-Identifier: Apache-2.0
"""Steps that are one command of the router: pause, resume, promote, abort, undo, stop."""

from __future__ import annotations

from typing import Annotated

from lerobot_serve.tools.cli.operator_options import Operator, Reason, RouterName
from lerobot_serve.tools.cli.signature import Argument
from lerobot_serve.tools.operate.rule import Verb
from lerobot_serve.tools.output.report import Report


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
