# SPDX-License-Identifier: Apache-2.0
"""The transitions of a policy server, as `ros2 lifecycle` and a lifecycle manager ask for them."""

from __future__ import annotations

from lifecycle_msgs.msg import Transition
import pytest

from lerobot_serve.contract.schema import Refusal, Status

IDLE = {'autostart': False, 'policy_kind': 'steered', 'until': 'unconfigured'}


def test_it_configures_and_activates_itself(rig):
    rig.start(policy_kind='steered')
    assert rig.lifecycle() == 'active'
    status = rig.status()
    assert status.warmed_up
    assert (status.policy_type, status.device, status.slot) == ('steered', 'cpu', 'prod')
    assert status.server == '/policy_server'
    # the warm-up is not a request
    assert (status.requests, status.chunks, status.inference_ms_p50) == (0, 0, 0.0)
    assert rig.client().round_trip().status == Status.OK


def test_without_autostart_it_waits_for_each_transition(rig):
    rig.start(**IDLE)
    assert rig.lifecycle() == 'unconfigured'
    expect_refusal(rig, Refusal.NOT_READY, 'configure the node')
    assert 'configure' in rig.status().text
    assert not rig.status().warmed_up
    assert not rig.steering.events()

    assert rig.change_state('configure')
    assert (rig.lifecycle(), rig.state()) == ('inactive', 'inactive')
    expect_refusal(rig, Refusal.NOT_READY, 'activate the node')
    assert rig.status().warmed_up

    assert rig.change_state('activate')
    assert (rig.lifecycle(), rig.state(), rig.status().text) == ('active', 'active', '')
    assert rig.client().round_trip().status == Status.OK


def expect_refusal(rig, code: Refusal, words: str) -> None:
    reply = rig.open_session(rig.stranger('early'))
    assert (reply.accepted, reply.code) == (False, code)
    assert words in reply.reason


def test_while_it_loads_clients_are_answered_and_nothing_else_is_begun(rig):
    rig.steering.loads.close_gate()
    rig.start(until='unconfigured', policy_kind='steered')
    rig.wait_for_events('load')
    assert rig.lifecycle() == 'configuring'
    assert rig.status().text == 'loading the policy'
    expect_refusal(rig, Refusal.NOT_READY, 'loading the policy')
    for transition in ('configure', 'activate', 'cleanup', 'shutdown'):
        assert not rig.change_state(transition)
    assert 'while the node is configured' in rig.set(policy_path='elsewhere')
    assert rig.set(max_sessions=3) == ''
    rig.steering.loads.open_gate()
    rig.wait_for('active')
    assert rig.status().max_sessions == 3
    assert len(rig.steering.events('load')) == 1


def test_a_lifecycle_manager_may_take_its_time_to_configure(rig):
    rig.steering.loads.close_gate()
    rig.start(**IDLE)
    done = rig.begin('configure')
    rig.wait_for_events('load')
    assert rig.lifecycle() == 'configuring'
    expect_refusal(rig, Refusal.NOT_READY, 'loading the policy')
    assert not rig.change_state('configure')
    assert not done.done()
    rig.steering.loads.open_gate()
    assert rig.finished(done, 'it is configured').success
    assert rig.lifecycle() == 'inactive'


def test_a_policy_that_cannot_be_loaded_is_mended_and_configured_again(rig, log_of_rig):
    rig.start(**IDLE, policy_path='/nowhere', policy_root=str(rig.steering.folder.parent))
    assert not rig.change_state('configure')
    assert (rig.lifecycle(), rig.state()) == ('unconfigured', 'failed')
    assert 'there is no folder /nowhere' in rig.status().text
    assert 'correct it and configure again' in rig.status().text
    assert 'cannot configure: there is no folder /nowhere' in log_of_rig('policy_server')
    expect_refusal(rig, Refusal.NOT_READY, 'there is no folder /nowhere')
    assert not rig.change_state('configure')
    assert not rig.change_state('activate')

    assert rig.set(policy_path=rig.steering.path()) == ''
    assert rig.change_state('configure')
    assert rig.change_state('activate')
    assert rig.client().round_trip().status == Status.OK


def test_what_belongs_to_the_policy_may_be_set_only_while_there_is_none(rig):
    rig.start(**IDLE)
    assert rig.set(policy_name='mine', default_task='pick') == ''
    assert 'read-only' in rig.set(slot='b')
    for transition in ('configure', 'activate', 'deactivate'):
        assert rig.change_state(transition)
        reason = rig.set(policy_path='elsewhere')
        assert reason.startswith('policy_path is ') and 'while the node is configured' in reason
        assert 'clean up the node, set the parameter' in reason
    assert rig.describe().default_task == 'pick'
    assert rig.change_state('cleanup')
    assert rig.set(default_task='') == ''


def test_a_pause_keeps_the_sessions(rig):
    rig.start(policy_kind='steered')
    client = rig.client()
    before = client.round_trip()
    assert rig.change_state('deactivate')
    assert (rig.lifecycle(), rig.state()) == ('inactive', 'inactive')
    paused = client.round_trip()
    assert paused.status == Status.DRAINING
    assert 'another server' in paused.status_text
    assert rig.drops() == {'draining': 1}
    expect_refusal(rig, Refusal.DRAINING, 'another server')
    assert rig.change_state('activate')
    after = client.round_trip()
    assert (before.status, after.status) == (Status.OK, Status.OK)
    assert len(rig.steering.events('load')) == 1


def test_cleanup_frees_the_policy_and_another_takes_its_place(rig):
    root = str(rig.steering.folder.parent)
    rig.start(policy_kind='steered', policy_path=rig.steering.path(chunk=4), policy_root=root)
    client = rig.client()
    first = client.round_trip()
    assert len(first.robot) == 4
    assert rig.change_state('deactivate')
    assert not rig.steering.events('freed')
    assert rig.change_state('cleanup')
    assert rig.steering.events('freed') == ['freed']
    status = rig.status()
    assert (rig.lifecycle(), rig.state()) == ('unconfigured', 'unconfigured')
    assert (status.policy, status.active_sessions, status.warmed_up) == ('', 0, False)
    assert f'reset {name(client)}' in rig.steering.events('reset')
    client.request()
    rig.wait_for_drop('no_session')

    assert rig.set(policy_path=rig.steering.path(chunk=8)) == ''
    assert rig.change_state('configure')
    assert rig.change_state('activate')
    client.open()
    second = client.round_trip()
    assert len(second.robot) == 8
    assert second.policy == rig.status().policy != first.policy


def name(client) -> str:
    """Return what the policy knows the session of a robot by."""
    return f'{client.ask.client_id}#{client.ask.session_epoch:08x}'


ALLOWED = {
    'unconfigured': {'configure', 'shutdown'},
    'inactive': {'activate', 'cleanup', 'shutdown'},
    'active': {'deactivate', 'shutdown'},
    'finalized': set(),
}
IDS = {
    'configure': Transition.TRANSITION_CONFIGURE,
    'activate': Transition.TRANSITION_ACTIVATE,
    'deactivate': Transition.TRANSITION_DEACTIVATE,
    'cleanup': Transition.TRANSITION_CLEANUP,
}
WAY = {'unconfigured': 'configure', 'inactive': 'activate', 'active': 'shutdown'}
# what the state machine itself goes through, which nobody may ask for, and what there is not
NOT_FOR_CLIENTS = (
    Transition.TRANSITION_ON_CONFIGURE_SUCCESS,
    Transition.TRANSITION_ON_ERROR_ERROR,
    Transition.TRANSITION_CREATE,
    Transition.TRANSITION_DESTROY,
    200,
    'transition_success',
    'transition_error',
    'nonsense',
)


@pytest.mark.parametrize('kind', ['label', 'id'])
def test_a_transition_that_is_not_allowed_hurts_nobody(rig, log_of_rig, kind):
    process = rig.start(**IDLE)
    asked = {label: label if kind == 'label' else number for label, number in IDS.items()}
    for state, allowed in ALLOWED.items():
        refused = [asked[label] for label in IDS if label not in allowed]
        for transition in (*refused, *NOT_FOR_CLIENTS):
            assert not rig.change_state(transition), (state, transition)
            assert rig.lifecycle() == state
        if state == 'active':
            assert rig.client().round_trip().status == Status.OK
        if state in WAY:
            assert rig.change_state(WAY[state])
    assert process.poll() is None
    log = log_of_rig('policy_server')
    assert 'rejected in state' in log
    assert 'Traceback' not in log
    assert 'cannot ' not in log


def test_after_shutdown_it_says_what_is_left_to_do(rig):
    process = rig.start(policy_kind='steered')
    assert rig.change_state('shutdown')
    assert rig.lifecycle() == 'finalized'
    assert rig.steering.events('freed') == ['freed']
    expect_refusal(rig, Refusal.NOT_READY, 'restart the process')
    process.terminate()
    assert process.wait(20) == 0
