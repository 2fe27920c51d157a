# SPDX-License-Identifier: Apache-2.0
"""Which policy is a slot's, who is a stranger there, and which replica is taken."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, RuleBasedStateMachine
import pytest
from support.router.dispatch_rig import status_of

from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.eligibility import PolicyVerdict
from lerobot_serve.router.replicas.replica import is_serving, ReplicaState
from lerobot_serve.router.replicas.slot import overall_health, Slot, SlotDrain, VerdictRecord

RULES = RouterParameters()


def seen(policy: str, slot: str = 'a', active: bool = True, load: float = 0.0) -> ServerStatus:
    return status_of(policy, slot, active=active, load=load)


def make(*servers: str, settled: bool = True) -> Slot:
    slot = Slot('a', servers, RULES)
    slot.is_policy_pinned = settled
    return slot


def gone(slot: Slot, server: str) -> None:
    slot.replicas[server].set_available(is_available=False)


def test_one_that_is_back_has_to_tell_of_itself_again():
    slot = make('/1')
    slot.record_report('/1', seen('one'))
    assert slot.is_healthy
    replica = slot.replicas['/1']
    replica.set_available(is_available=True)
    assert slot.is_healthy
    gone(slot, '/1')
    assert 'server unavailable' in slot.text
    # its services are found before its policy is loaded
    replica.set_available(is_available=True)
    assert not replica.is_reachable
    assert 'no status received yet' in slot.text
    slot.record_report('/1', seen('one'))
    assert slot.is_healthy


def test_the_first_in_the_list_decides_until_the_slot_is_settled():
    slot = make('/1', '/2', settled=False)
    assert slot.record_report('/2', seen('two')) == ''
    assert slot.policy == 'two'
    assert 'policy changed from two to one' in slot.record_report('/1', seen('one'))
    assert slot.replicas['/2'].state is ReplicaState.POLICY_MISMATCH
    slot.pin_policy()
    gone(slot, '/1')
    slot.record_report('/2', seen('two'))
    assert slot.policy == 'two'


def test_pinning_chooses_among_those_that_are_available_then():
    slot = make('/1', '/2', settled=False)
    slot.record_report('/1', seen('one'))
    slot.record_report('/2', seen('two'))
    assert slot.policy == 'one'
    gone(slot, '/1')
    slot.pin_policy()
    assert (slot.policy, slot.replicas['/2'].state) == ('two', ReplicaState.READY)
    slot.record_report('/1', seen('one'))
    assert (slot.policy, slot.replicas['/1'].state) == ('two', ReplicaState.POLICY_MISMATCH)


def test_a_settled_slot_keeps_its_policy_as_long_as_anybody_serves_it():
    slot = make('/1', '/2')
    slot.record_report('/2', seen('one'))
    slot.record_report('/1', seen('two'))
    assert (slot.policy, slot.choose().name) == ('one', '/2')
    assert 'all replicas of a slot must serve the same policy' in slot.replicas['/1'].text
    gone(slot, '/2')
    assert not slot.has_ready_replica
    assert slot.record_report('/1', seen('two')) == 'slot a: policy changed from one to two'
    assert slot.choose().name == '/1'
    # who comes back with the old one is the stranger now
    slot.record_report('/2', seen('one'))
    assert slot.replicas['/2'].state is ReplicaState.POLICY_MISMATCH


def test_a_whole_slot_that_went_keeps_its_policy_until_another_comes():
    slot = make('/1')
    slot.record_report('/1', seen('one'))
    slot.record_report('/1', seen('', active=False))
    assert (slot.policy, slot.has_ready_replica) == ('one', False)
    assert slot.record_report('/1', seen('one')) == ''
    assert slot.is_healthy


def test_a_replica_of_another_slot_decides_nothing_and_says_what_to_do():
    slot = make('/1', '/2')
    slot.record_report('/1', seen('one', slot='prod'))
    assert slot.policy == ''
    assert 'start it with slot:=a' in slot.text
    slot.record_report('/2', seen('two'))
    assert (slot.policy, slot.choose().name) == ('two', '/2')


def test_the_least_loaded_is_taken_and_one_that_failed_only_where_there_is_no_other():
    slot = make('/1', '/2', '/3')
    for server, load in (('/1', 0.9), ('/2', 0.5), ('/3', 0.1)):
        slot.record_report(server, seen('p', load=load))
    assert slot.choose().name == '/3'
    assert slot.choose({'/3'}).name == '/2'
    slot.replicas['/3'].health.mark_unhealthy('x', 0)
    assert slot.choose().name == '/2'
    assert slot.choose({'/1', '/2'}).name == '/3'
    assert slot.choose(set(slot.replicas)) is None
    gone(slot, '/3')
    assert slot.choose({'/1', '/2'}) is None


def test_the_only_replica_is_given_as_many_failures_as_its_slot():
    for servers, failures in ((('/1',), 5), (('/1', '/2'), 2)):
        health = make(*servers).replicas['/1'].health
        changes = [health.record_failure('timeout', 0) for _ in range(failures)]
        assert changes == [False] * (failures - 1) + [True]


@pytest.mark.parametrize(
    ('a', 'b', 'expected'),
    [(1, 1, 'healthy'), (1, 0, 'slot_b_drained'), (0, 1, 'slot_a_drained'), (0, 0, 'unavailable')],
)
def test_the_verdict(a, b, expected):
    slots = {name: Slot(name, ('/1',), RULES) for name in 'ab'}
    for name, well in zip('ab', (a, b), strict=True):
        slots[name].record_report('/1', seen('p', slot=name))
        if not well:
            slots[name].health.mark_unhealthy('x', 0)
    assert overall_health(slots) == expected


def test_a_slot_that_does_not_fit_takes_nothing_and_says_why():
    slot = make('/1')
    slot.record_report('/1', seen('p'))
    slot.incompatibility = 'incompatible with slot a: actions'
    assert (slot.is_healthy, slot.has_ready_replica, slot.text) == (
        False,
        True,
        slot.incompatibility,
    )
    slot.drain = SlotDrain('maintenance', 0)
    assert slot.text == 'drained by an operator: maintenance'
    slot.verdicts['p'] = VerdictRecord(PolicyVerdict.ROLLED_BACK, 'rolled back: it hit the table')
    assert slot.text == 'rolled back: it hit the table'


class Pinning(RuleBasedStateMachine):
    """Replicas that come, go and change their policy: those that are taken are all of one."""

    def __init__(self) -> None:
        super().__init__()
        self.slot = make('/1', '/2', '/3')

    @rule(
        server=st.sampled_from(('/1', '/2', '/3')),
        policy=st.sampled_from('pqr'),
        active=st.booleans(),
        name=st.sampled_from(('a', 'a', 'b')),
    )
    def learns(self, server, policy, active, name):
        before = self.slot.policy
        others = [r for r in self.slot if r.name != server and self.serves(r, before)]
        self.slot.record_report(server, seen(policy, name, active))
        if others:
            assert self.slot.policy == before, 'changed under those that serve it'

    @rule(server=st.sampled_from(('/1', '/2', '/3')), there=st.booleans())
    def comes_or_goes(self, server, there):
        self.slot.replicas[server].set_available(is_available=there)

    @staticmethod
    def serves(replica, policy: str) -> bool:
        there = replica.is_available and replica.report is not None and is_serving(replica.report)
        return there and replica.report.slot == 'a' and replica.report.policy == policy

    @invariant()
    def who_may_serve_serves_the_policy(self):
        for replica in self.slot:
            if replica.is_reachable:
                assert self.serves(replica, self.slot.policy)


TestPinning = Pinning.TestCase
TestPinning.settings = settings(max_examples=25, stateful_step_count=40)
