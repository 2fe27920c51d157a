# SPDX-License-Identifier: Apache-2.0
"""
Run one command of an operator and confirm it by the next state of the router or robot.

The caller's thread. Each raises UserError when nothing was changed, and ResultUnknown when the
command was sent and its effect is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TYPE_CHECKING

from lerobot_serve.errors import UserError
from lerobot_serve.parameters import build_parameters, parameter_specs
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.tools.operate import fleet_state
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.outcome import NotReached, Result, ResultUnknown, unconfirmed_text
from lerobot_serve.tools.operate.rollout.rollout_view import changes
from lerobot_serve.tools.operate.rollout.steering import split_text
from lerobot_serve.tools.operate.rule import Effect, RobotVerb, Rule

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

Accepts = Callable[[RouterView], bool]
CANARY_PREFIX, SHADOW_SERVER = 'canary.', 'shadow_server'
# a robot whose server is not a router, or whose router hangs, has none that records a verb
RECORD_S = 1.0
# a router publishes its state every second, an edge more often
STATE_PERIOD_S = 1.5


def read_settings(client: FleetClient, router: str) -> RouterParameters:
    """
    Return the parameters of a router with those of its canary and its shadow; the others are the
    defaults. Raises NotReached, ResultUnknown.
    """
    names = [
        spec.name
        for spec in parameter_specs(RouterParameters)
        if spec.name.startswith(CANARY_PREFIX)
    ]
    given = client.get_parameters(router, [*names, SHADOW_SERVER])
    values = {name: value for name, value in given.items() if value is not None}
    return build_parameters(RouterParameters, values)


def run_rule(
    client: FleetClient,
    before: RouterView,
    rule: Rule,
    *,
    verb: str,
    slot: str = '',
    at_once: bool = False,
    reason: str = '',
) -> Result:
    """Run the ControlSlot command of a rule on a router in the state `before`."""
    # without an acknowledgement, infer success from a state change
    accepts, has_changed = (
        confirms(rule, before, slot, by_change=by_change) for by_change in (False, True)
    )
    return run_command(
        client,
        before,
        rule.command,
        accepts,
        verb=verb,
        has_changed=has_changed,
        slot=slot,
        at_once=at_once,
        reason=reason,
        # of two operators who promote at once one does it
        plan=[] if rule.step is None else [str(rule.step)],
    )


def run_command(
    client: FleetClient,
    before: RouterView,
    command: str,
    accepts: Accepts,
    *,
    verb: str,
    has_changed: Accepts | None = None,
    reason: str = '',
    **values: Any,
) -> Result:
    """
    Run a command of ControlSlot on a router in the state `before`, and wait for the state that
    shows it. `has_changed` is the test of a command that the router refuses or does not reply to;
    another operator may have been faster.
    """
    name, changed = before.name, has_changed or accepts
    try:
        done, text = client.control_slot(
            name, command, reason=signed(client.operator, reason), **values
        )
    except ResultUnknown:
        done, text = None, ''
    after = client.wait_for_router(
        name, accepts if done else changed, None if done else STATE_PERIOD_S
    )
    if after is None:
        if done is False:
            raise UserError(f'{name} refuses: {text}. Nothing was changed')
        raise _unknown(client, before, verb, text)
    after = settled(client, after)
    if done is False:
        text = f'done already: {text}'
    elif not values.get('slot'):
        # the state continues while it is waited for; one text and one state
        text = after.canary.text
    return Result(verb, name, text, client.operator, changes(before, after))


def signed(operator: str, reason: str) -> str:
    """Return who and why, as a router stores it."""
    return f'{operator}: {reason or "no reason given"}'


def set_split(client: FleetClient, before: RouterView, percent: int, reason: str = '') -> Result:
    """Set the share of new episodes for slot a. Raises UserError, ResultUnknown."""
    done = run_command(
        client,
        before,
        'SET_SPLIT',
        lambda now: now.state.split_percent == percent,
        verb='split',
        reason=reason,
        split_percent=percent,
    )
    return replace(done, text=split_text(percent))


def settled(client: FleetClient, after: RouterView) -> RouterView:
    """
    Return the state once its split is that of its canary: a router publishes the two in turn. The
    given one when they stay apart, which an operator's split after the end of a canary does.
    """

    def accepts(now: RouterView) -> bool:
        is_off = now.canary.state is CanaryPhase.OFF
        return is_off or now.state.split_percent == 100 - now.canary.share_percent

    return client.wait_for_router(after.name, accepts, STATE_PERIOD_S) or after


def confirms(rule: Rule, before: RouterView, slot: str, *, by_change: bool = False) -> Accepts:
    """
    Return the test of a state that shows the effect of a rule; `by_change`: that of a slot must
    differ from before.
    """

    def accepts(now: RouterView) -> bool:
        found = now.slot(slot)
        if slot:
            old_slot = before.slot(slot)
            is_same = bool(found and old_slot and found.state == old_slot.state)
            return bool(found and found.state.name in rule.wanted and not (by_change and is_same))
        state, old = now.canary, before.canary
        if rule.step is None:
            has_changed = (state.state, state.step, state.text) != (old.state, old.step, old.text)
        else:
            has_changed = state.step > rule.step
        return has_changed and state.state.name in rule.wanted

    return accepts


def _unknown(client: FleetClient, before: RouterView, verb: str, accepted: str) -> ResultUnknown:
    """Return the error of a command without a confirmation."""
    now = client.last_router(before.name) or before
    share = f'{now.state.split_percent} % of new episodes to slot a'
    last = f'{now.canary.text or now.state.health}; {share}'
    return ResultUnknown(
        unconfirmed_text(before.name, verb, accepted=accepted, last=last, age_s=now.age_s)
    )


def run_robot_verb(
    client: FleetClient, robot: RobotView, verb: RobotVerb, reason: str = ''
) -> Result:
    """
    Call the service of a verb, and wait for the pause to begin or end. The router of the robot
    records it. Raises UserError, and ResultUnknown without a state that shows it; for a pause
    both say how to stop the robot by hand.
    """
    try:
        done, text = client.trigger(robot.node, verb.service)
    except NotReached as error:
        raise NotReached(f'{error}{_by_hand(verb)}') from error
    except ResultUnknown:
        done, text = False, ''
    wanted = {RobotVerb.PAUSE: True, RobotVerb.RESUME: False}.get(verb)
    after = client.wait_for_robot(
        robot.node,
        lambda now: wanted in (None, now.edge.paused),
        None if done else STATE_PERIOD_S,
    )
    is_shown = wanted is not None and after is not None
    # resume ends the pause of a robot that something else stops, and says so
    if text and not (done or is_shown):
        raise UserError(f'{robot.name}: {text}')
    if not is_shown and (wanted is not None or not text):
        raise _unknown_robot(robot, verb, text)
    recorded = _record(client, after or robot, verb, reason)
    text = '. '.join(filter(None, (text, recorded)))
    return Result(verb.value, robot.node, text, client.operator, _pause_change(robot, after))


def _record(client: FleetClient, robot: RobotView, verb: RobotVerb, reason: str) -> str:
    """Let the router of a robot record the verb; return why it did not, empty when it did."""
    note = f'{client.operator}: {verb.value} {robot.name}: {reason or "no reason given"}'
    try:
        done, text = client.control_slot(robot.edge.server, 'NOTE', reason=note, limit_s=RECORD_S)
    except (UserError, ResultUnknown, ValueError) as error:
        done, text = False, str(error)
    if done or not reason:
        return ''
    return (
        f'The reason is not recorded: {robot.edge.server or "no server"} is not a router ({text})'
    )


def _unknown_robot(robot: RobotView, verb: RobotVerb, accepted: str) -> ResultUnknown:
    reply = f'accepted it ({accepted})' if accepted else 'did not reply'
    last = f'{robot.state}, {"paused" if robot.edge.paused else "not paused"}'
    return ResultUnknown(
        f'UNKNOWN: {verb.value} was sent; {robot.node} {reply}, and no state shows it. Last '
        f'known: {last}. Read the state with `lerobot-serve robots`{_by_hand(verb)}'
    )


def _by_hand(verb: RobotVerb) -> str:
    """Return how to stop a robot that a pause did not reach; empty for other verbs."""
    return f'; {fleet_state.STOP_BY_HAND}' if verb is RobotVerb.PAUSE else ''


def _pause_change(before: RobotView, after: RobotView | None) -> list[str]:
    if after is None or before.edge.paused == after.edge.paused:
        return []
    old, new = (str(each.edge.paused).lower() for each in (before, after))
    return [f'paused: {old} -> {new}']


def report_outcome(
    client: FleetClient, router: str, episode_id: str, outcome: str, text: str
) -> Result:
    """Report how an episode ended, by a word. Raises UserError, ResultUnknown."""
    signed = f'{client.operator}: {text}' if text else client.operator
    accepted, reply = client.report_outcome(router, episode_id, outcome, signed)
    if not accepted:
        raise UserError(f'{router} refuses: {reply}. Nothing was changed')
    # a repetition, or an episode that moved
    what = f'{episode_id}, {outcome}: {reply}' if reply else f'{episode_id} counts as {outcome}'
    return Result('outcome', router, what, client.operator)


def checked(rule: Rule) -> bool:
    """Return whether the rule does something. Raises UserError when it is refused."""
    if rule.effect is Effect.REFUSE:
        raise UserError(rule.text)
    return rule.effect is Effect.DO
