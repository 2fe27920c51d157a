# SPDX-License-Identifier: Apache-2.0
"""A plan is for the policy for which it was started; another one in slot b waits."""

from __future__ import annotations

import pytest
from support.router.canary_rig import NEW, OLD, plan, QUICK, started, whats, World

from lerobot_serve.router.canary.canary import Canary, CanaryCommandRejected
from lerobot_serve.router.canary.plan import other_policy_text
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.parameters import RouterParameters

OTHER = 'other@3'


@pytest.mark.parametrize(
    ('planned', 'candidate', 'is_other'),
    [('', '', False), ('', NEW, False), (NEW, '', False), (NEW, NEW, False), (NEW, OTHER, True)],
)
def test_how_a_candidate_fits_a_plan(planned, candidate, is_other):
    assert bool(other_policy_text(planned, candidate)) is is_other


def assert_waits(world: World) -> None:
    world.wait(1000)
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.WAITING, 0)
    assert f'the plan is for {NEW}, and slot b serves {OTHER}' in world.canary.text
    assert '`lerobot-serve rollout start`' in world.canary.text


def pause(world: World) -> World:
    world.canary.pause('lunch')
    return world


def roll_back(world: World) -> World:
    world.canary.rollback('arm hit the table')
    return world


@pytest.mark.parametrize(
    'world',
    [
        lambda: started(),
        lambda: World().to_step(2),
        lambda: World().to_step(3),
        lambda: pause(started()),
        lambda: roll_back(started()),
    ],
    ids=['running', 'second step', 'promoted', 'paused', 'rolled back'],
)
def test_another_policy_waits_in_every_phase(world):
    world = world()
    world.change('candidate', policy=OTHER)
    assert whats(world.poll()) == ['restarted']
    assert_waits(world)
    with pytest.raises(CanaryCommandRejected):
        world.canary.promote('now')
    # an operator starts it
    world.canary.start_for(OTHER, by='kim@lab: it is better')
    assert 'kim@lab: it is better' in world.canary.text
    world.poll()
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.RUNNING, 5)


def test_the_planned_policy_begins_at_the_first_step_when_it_is_back():
    world = World().to_step(2)
    world.change('candidate', policy=OTHER)
    world.poll()
    world.change('candidate', policy=NEW)
    world.wait(100)
    assert (world.canary.state, world.canary.step) == (CanaryPhase.RUNNING, 0)


def test_it_waits_after_a_restart_of_the_router_too():
    world = started()
    again = Canary(plan(), QUICK)
    assert again.restore(world.canary.snapshot()) == ''
    world.canary = again
    world.change('candidate', policy=OTHER)
    assert_waits(world)


def test_a_plan_of_the_parameter_file_is_for_the_first_candidate():
    """Both slots serve the champion at first, as before the first rollout."""
    world = World()
    world.change('candidate', policy=OLD)
    world.wait(100)
    assert 'both slots serve' in world.canary.text
    world.change('candidate', policy=NEW)
    world.wait(100)
    assert (world.canary.state, world.canary.record.planned_policy) == (CanaryPhase.RUNNING, NEW)
    world.change('candidate', policy=OTHER)
    world.poll()
    assert_waits(world)


def test_other_terms_keep_the_policy_and_another_plan_takes_the_present_one():
    world = started()
    world.change('candidate', policy=OTHER)
    world.poll()
    world.canary.change_plan(plan(), RouterParameters(canary_margin=0.3))
    assert_waits(world)
    world.canary.change_plan(plan('50', '100'), world.canary.rules, by='unknown, by parameter')
    assert 'unknown, by parameter' in world.canary.text
    world.poll()
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.RUNNING, 50)
