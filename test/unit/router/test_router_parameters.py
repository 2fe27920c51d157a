# SPDX-License-Identifier: Apache-2.0
"""Every parameter that may change while the router runs does so, where it acts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.router.router_core_rig import RoutingRig, TWO_SLOTS

from lerobot_serve.parameters import parameter_specs, ParameterError
from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.parameters import RouterParameters

PLAN = ('5', '50', '100')


@pytest.fixture
def rig(make_router):
    return make_router(**TWO_SLOTS, canary_plan=PLAN)


def lacks(core: RouterCore) -> str:
    core.update_canary()
    return core.slots['b'].unmet_requirements


# field -> another value, and what is to be seen of it where it acts
TABLE: dict[str, tuple[object, Callable[[RouterCore], object], object]] = {
    'split_percent': (20, lambda s: s.table.rules.split_percent, 20),
    'failover_slots': (
        'both',
        lambda s: s.slots['b'].takes_failover and s.slots['a'].takes_failover,
        True,
    ),
    'move_episodes_on_rollback': (True, lambda s: s.canary._rollback_now, True),
    'episode_drain_timeout_s': (5.0, lambda s: s.decisions.leave_within_ns, 5_000_000_000),
    'reply_timeout_s': (0.25, lambda s: s.table.rules.timeout_ns, 250_000_000),
    'hedge_factor': (3.5, lambda s: s.table.rules.hedge_factor, 3.5),
    'hedge_budget_percent': (
        50.0,
        lambda s: s.table.rules.hedge_budget_percent,
        50.0,
    ),
    'shadow_sample_percent': (12.5, lambda s: s.parameters.shadow_sample_percent, 12.5),
    'shadow_spread_percent': (7.5, lambda s: s.parameters.shadow_spread_percent, 7.5),
    'shadow_minimum_hours': (1.5, lambda s: '0.00 of 1.5 hours' in lacks(s), True),
    'shadow_minimum_episodes': (7, lambda s: '0 of 7 episodes' in lacks(s), True),
    # read when it is activated, from the present parameters
    'discovery_timeout_s': (9.0, lambda s: s.parameters.discovery_timeout_s, 9.0),
    'canary_plan': (('10', '100'), lambda s: s.canary.canary.plan.steps[0].share_percent, 10),
    'canary_minimum_episodes': (3, lambda s: s.canary.canary.plan.steps[0].minimum_episodes, 3),
    'canary_minimum_step_s': (2.0, lambda s: s.canary.canary.plan.steps[0].minimum_s, 2.0),
    'canary_outcome_timeout_hours': (2.0, lambda s: s.table.stats.verdict_within_ns, 7200 * 10**9),
    **{
        f'canary_{name}': (9, lambda s, n=name: getattr(s.canary.canary.rules, f'canary_{n}'), 9)
        for name in (
            *('max_failed_percent', 'max_latency_ratio', 'max_trip_percent', 'max_divergence'),
            *('max_fallback_percent', 'max_halted_percent', 'minimum_replies', 'minimum_halts'),
            *('minimum_commands', 'watch_episodes', 'watch_hours', 'block_episodes'),
            *('margin', 'false_promotion', 'false_rollback'),
        )
    },
    'quotas': (('robot *: 9 MB/s',), lambda s: len(s.table.quotas.settings[0]), 1),
    'quota_burst_s': (9.0, lambda s: s.table.quotas.settings[1], 9.0),
}


def test_the_table_has_every_parameter_that_may_change():
    live = {spec.field for spec in parameter_specs(RouterParameters) if spec.live}
    assert live == set(TABLE)


@pytest.mark.parametrize('field', TABLE)
def test_a_change_arrives_where_it_acts(rig, field):
    value, seen, wanted = TABLE[field]
    assert seen(rig.core) != wanted
    rig.core.change_parameters(replace(rig.parameters, **{field: value}))
    assert seen(rig.core) == wanted
    rig.core.change_parameters(rig.parameters)
    assert seen(rig.core) != wanted


def test_a_change_of_one_thing_leaves_the_rest_as_it_was(rig):
    rig.core.update_canary()
    before = rig.core.canary.canary.history
    rig.core.change_parameters(replace(rig.parameters, hedge_budget_percent=50.0))
    assert rig.core.canary.canary.history == before
    assert not rig.core.update_canary()


def split(rig: RoutingRig, percent: int) -> None:
    rig.core.check_change(rig.parameters, replace(rig.parameters, split_percent=percent))


def test_the_split_is_the_canarys_while_it_goes_on(rig):
    with pytest.raises(ParameterError, match=r'split_percent stays 50: the canary sets it'):
        split(rig, 40)
    # everything else may change
    rig.core.check_change(rig.parameters, replace(rig.parameters, hedge_budget_percent=1.0))
    rig.core.canary.run_command('rollback', 'a test', rig.now_ns)
    split(rig, 100)
    with pytest.raises(ParameterError, match=r'slot b would receive 60 %.*rolled back.*a test'):
        split(rig, 40)
    rig.core.decisions.lift(rig.slots['b'], rig.slots['b'].policy)
    split(rig, 40)


def test_no_share_goes_to_a_slot_that_takes_none(make_router):
    rig = make_router()
    rig.away('/b1')
    with pytest.raises(ParameterError, match='slot b would receive 60 % and is not eligible: /b1'):
        split(rig, 40)
    split(rig, 100)
    rig.away('/a1', '/a2')
    with pytest.raises(ParameterError, match='slot a would receive 100 %'):
        split(rig, 100)


def test_with_one_slot_the_split_means_nothing(make_router):
    rig = make_router(slot_prod=('/one',))
    rig.away('/one')
    split(rig, 0)


def test_servers_without_a_leading_slash_are_in_the_routers_namespace():
    given = RouterParameters(slot_b=('/far/policy_server',), shadow_server='shadow/policy_server')
    for namespace, slot_a in (('/', '/slot_a'), ('/cell_1', '/cell_1/slot_a')):
        named = given.within(namespace)
        assert named.slot_a == (f'{slot_a}/policy_server',)
        assert named.slot_b == ('/far/policy_server',)
        assert named.shadow_server == f'{slot_a[:-7]}/shadow/policy_server'
        assert named.within('/elsewhere') == named
    one = RouterParameters(slot_a=('x/policy_server',), slot_b=('/cell/x/policy_server',))
    with pytest.raises(ParameterError, match='in slot_b and in slot_a'):
        one.within('/cell')
    with pytest.raises(ParameterError, match='must be a node name such as'):
        RouterParameters(slot_a=('x//y',)).check()
