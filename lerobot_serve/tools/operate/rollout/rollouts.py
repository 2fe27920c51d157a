# SPDX-License-Identifier: Apache-2.0
"""
Begin and finish a rollout: the two verbs that take several steps. The caller's thread.

Each raises UserError, and ResultUnknown for a step that was sent and not confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from lerobot_serve.contract.records import ReplicaState, SlotState
from lerobot_serve.errors import UserError, WrongCommandLine
from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.canary.plan import CanaryPlan, parse_plan
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.tools.operate.commands import rollout_rule
from lerobot_serve.tools.operate.fleet_state import (
    CANDIDATE_SLOT,
    CHAMPION_SLOT,
    RouterView,
    waits_for_start,
)
from lerobot_serve.tools.operate.names import check_policy, resolve_slot
from lerobot_serve.tools.operate.operations import checked, run_command, signed
from lerobot_serve.tools.operate.outcome import Result
from lerobot_serve.tools.operate.rollout.replica_loading import (
    POLICY_PARAMETERS,
    ServerLoader,
    SlotLoader,
    wait_until_empty,
)
from lerobot_serve.tools.operate.rollout.rollout_view import changes
from lerobot_serve.tools.operate.rollout.steering import ReadPlan
from lerobot_serve.tools.operate.rule import Effect, nothing, Rule, Verb

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

DEFAULT_PLAN, ALL_TO_CHAMPION = '25,50,100', 100
# returns the directory of the policy that a server serves, empty where it is not asked
ReadPath = Callable[[str], str]


def parsed_plan(given: str) -> list[str]:
    """Return the steps of --plan. Raises WrongCommandLine."""
    steps = [step.strip() for step in given.split(',') if step.strip()]
    try:
        plan = parse_plan(steps, name='--plan')
    except ParameterError as error:
        raise WrongCommandLine(str(error)) from error
    if plan is None:
        raise WrongCommandLine(f'--plan must have steps, for example {DEFAULT_PLAN}')
    return steps


def check_start(given: str, router: RouterView) -> str:
    """
    Return the fingerprint of the candidate for a policy that slot b serves, empty for a directory
    that its servers must load. Raises UserError.
    """
    candidate, champion = (resolve_slot(name, router) for name in (CANDIDATE_SLOT, CHAMPION_SLOT))
    if '/' in given:
        return ''
    policy = check_policy(given, candidate) if given else candidate.policy
    _check_candidate(candidate, champion, policy)
    return policy


def start_rule(
    router: RouterView,
    given: str,
    plan: Sequence[str],
    read_plan: ReadPlan,
    read_path: ReadPath = lambda _: '',
    *,
    skips_shadow: bool = False,
) -> Rule:
    """Return what `start` would do. Raises UserError for a policy that cannot get episodes."""
    rule = rollout_rule(Verb.START, router.canary)
    if rule.effect is not Effect.DO:
        return _running_rule(router, given, plan, read_plan, read_path) or rule
    policy = check_start(given, router)
    load = '' if policy else f'load {given} into slot b, all episodes to slot a; then '
    without = ', without its shadow requirements' if skips_shadow else ''
    return replace(
        rule, text=f'{load}give {policy or "it"} episodes by the plan {", ".join(plan)}{without}'
    )


def _running_rule(
    router: RouterView,
    given: str,
    plan: Sequence[str],
    read_plan: ReadPlan,
    read_path: ReadPath,
) -> Rule | None:
    """Return that there is nothing to do, if this rollout runs already."""
    canary, candidate = router.canary, router.slot(CANDIDATE_SLOT)
    if canary.state not in (CanaryPhase.WAITING, *ON_TRIAL) or candidate is None:
        return None
    running = read_plan()
    if running is None or not _is_same_plan(plan, running):
        return None
    if '/' in given:
        ready = [
            replica.server
            for replica in candidate.replicas
            if replica.state is ReplicaState.State.READY
        ]
        if {PurePosixPath(read_path(each)) for each in ready} != {PurePosixPath(given)}:
            return None
    else:
        check_start(given, router)
    return nothing(
        f'the rollout of {canary.candidate_policy} by this plan runs already: {canary.text}'
    )


def _is_same_plan(given: Sequence[str], running: CanaryPlan) -> bool:
    """Return whether the steps are those of a plan; it may name minimums that they leave open."""
    pairs = zip(map(_numbers, given), map(_numbers, running.text.split(', ')), strict=False)
    same = all(new == old[: len(new)] for new, old in pairs)
    return same and len(given) == len(running.steps)


def _numbers(step: str) -> list[float]:
    return [float(number) for number in step.split(':')]


def finish_rule(router: RouterView) -> Rule:
    """Return what `finish` would do. Raises UserError when slot b cannot serve meanwhile."""
    if is_finished(router):
        return Rule(
            Effect.NOTHING, 'both slots serve the same policy, and slot a gets all episodes'
        )
    rule = rollout_rule(Verb.FINISH, router.canary)
    if rule.effect is Effect.DO:
        check_finish(router)
    return rule


def is_finished(router: RouterView) -> bool:
    """Return whether a rollout was finished and none has begun since."""
    champion, candidate = router.slot(CHAMPION_SLOT), router.slot(CANDIDATE_SLOT)
    return bool(
        router.canary.state is CanaryPhase.OFF
        and router.state.split_percent == ALL_TO_CHAMPION
        and champion
        and candidate
        and champion.policy
        and champion.policy == candidate.policy
    )


def _check_candidate(candidate: SlotState, champion: SlotState, policy: str) -> None:
    if not policy:
        raise UserError(f'slot {candidate.slot} serves no policy: {candidate.text}')
    if candidate.state is SlotState.State.BARRED:
        raise UserError(
            f'a verdict bars {policy}: {candidate.text}. Give another policy; to lift the verdict '
            'and try this one again: `lerobot-serve rollout resume`'
        )
    if policy == champion.policy:
        raise UserError(
            f'both slots serve {policy}: give the directory of the new policy, to load it into '
            f'slot {candidate.slot}'
        )


def start(
    loader: ServerLoader,
    before: RouterView,
    given: str,
    plan: Sequence[str],
    *,
    reason: str = '',
    skips_shadow: bool = False,
) -> Result:
    """
    Load the candidate into slot b if a directory is given, then start the plan for it;
    `skips_shadow`: without its shadow requirements.
    """
    client, now = loader.client, before
    if not check_start(given, before):
        now = _load_candidate(loader, before, given, reason)

    def begin() -> Result:
        check_start('', now)
        if skips_shadow:
            _skip_shadow(client, before.name, reason)
            loader.progress.note_change('slot b', 'may begin without its shadow requirements')
        return _start_plan(client, now, plan, reason)

    done = loader.progress.run(begin)
    after = client.last_router(before.name) or now
    return replace(done, text=after.canary.text, changes=changes(before, after))


def _start_plan(client: FleetClient, now: RouterView, plan: Sequence[str], reason: str) -> Result:
    """Start the plan for the policy that slot b serves. Raises UserError, ResultUnknown."""
    candidate = resolve_slot(CANDIDATE_SLOT, now).policy

    def accepts(state: RouterView) -> bool:
        canary = state.canary
        is_on = canary.state is not CanaryPhase.OFF and canary.step_count == len(plan)
        return is_on and canary.planned_policy == candidate and not waits_for_start(canary)

    return run_command(
        client, now, 'CANARY_START', accepts, verb='rollout start', reason=reason, plan=plan
    )


def _skip_shadow(client: FleetClient, router: str, reason: str) -> None:
    """Let slot b begin without its shadow requirements. Raises UserError, ResultUnknown."""
    by = signed(client.operator, reason)
    done, text = client.control_slot(router, 'SKIP_SHADOW', reason=by)
    if not done:
        raise UserError(f'{router} refuses: {text}. No plan was started')


def stop(client: FleetClient, before: RouterView, reason: str = '') -> Result:
    """Remove the plan without a verdict; all new episodes go to slot a."""
    done = _end(client, before, 'CANARY_STOP', 'rollout stop', reason)
    return replace(done, text='the plan is removed; a policy that was rolled back stays barred')


def _end(client: FleetClient, before: RouterView, command: str, verb: str, reason: str) -> Result:
    """Remove the plan and give slot a all new episodes, by CANARY_STOP or CANARY_FINISH."""

    def accepts(now: RouterView) -> bool:
        return now.canary.state is CanaryPhase.OFF and now.state.split_percent == ALL_TO_CHAMPION

    return run_command(
        client,
        before,
        command,
        accepts,
        verb=verb,
        reason=reason,
        split_percent=ALL_TO_CHAMPION,
    )


def _load_candidate(
    loader: ServerLoader, before: RouterView, folder: str, reason: str
) -> RouterView:
    """Load a directory into slot b, which gets no episodes meanwhile; return the next state."""
    client, progress = loader.client, loader.progress
    # the name was that of the previous policy; the kind stays
    values = {'policy_path': folder, 'policy_name': ''}
    slot = SlotLoader(loader, before.name, CANDIDATE_SLOT, values)
    slot.check(resolve_slot(CANDIDATE_SLOT, before))
    # one that has begun meanwhile would end without a verdict
    checked(rollout_rule(Verb.START, client.router(before.name).canary))
    why = f'loads {folder}: {reason}'.strip(': ')
    if _end(client, before, 'CANARY_STOP', 'rollout start', why).changes:
        progress.note_change(before.name, 'has no plan and gives all new episodes to slot a')
    progress.run(lambda: wait_until_empty(loader, CANDIDATE_SLOT, before.name))
    return slot.run(progress.run(lambda: client.router(before.name)))


def check_finish(router: RouterView) -> None:
    """Raise UserError when a promoted policy cannot be made the champion now."""
    candidate = resolve_slot(CANDIDATE_SLOT, router)
    if candidate.state is not SlotState.State.HEALTHY:
        raise UserError(
            f'slot b, which must serve meanwhile, is {candidate.state.name}: {candidate.text}. '
            'Nothing was changed'
        )


def check_still_promoted(client: FleetClient, before: RouterView) -> None:
    """Raise UserError when a rollback, or another candidate, came since `before`."""
    now = client.router(before.name)
    old, new = (resolve_slot(CANDIDATE_SLOT, state) for state in (before, now))
    is_same = (now.canary.state, new.policy) == (before.canary.state, old.policy)
    if is_same and new.state is SlotState.State.HEALTHY:
        return
    raise UserError(
        f'the rollout is {now.canary.state.name} and slot b {new.state.name} now: '
        f'{now.canary.text}. The rest is not loaded; restart the servers of slot a that '
        f'serve {old.policy}, so that they serve the policy of their start again'
    )


def finish(loader: ServerLoader, before: RouterView, *, reason: str = '') -> Result:
    """Load the policy of slot b into each server of slot a, then give slot a all episodes."""
    check_finish(before)
    client = loader.client
    candidate = resolve_slot(CANDIDATE_SLOT, before)
    source = next(r.server for r in candidate.replicas if r.state is ReplicaState.State.READY)
    values = client.get_parameters(source, POLICY_PARAMETERS)
    slot = SlotLoader(
        loader,
        before.name,
        CHAMPION_SLOT,
        values,
        candidate.policy,
        lambda: check_still_promoted(client, before),
    )
    slot.check(resolve_slot(CHAMPION_SLOT, before))
    wait_until_empty(loader, CHAMPION_SLOT, before.name)
    loaded = slot.run(before)

    def end() -> Result:
        check_still_promoted(client, before)
        return _end(client, loaded, 'CANARY_FINISH', 'rollout finish', reason)

    done = loader.progress.run(end)
    text = f'slot a serves {candidate.policy} and gets all new episodes; slot b is free'
    after = client.last_router(before.name) or loaded
    return replace(done, text=text, changes=changes(before, after))
