# SPDX-License-Identifier: Apache-2.0
"""One session of the blocking client against a fake server."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.replacing import replace
from support.threads import in_thread
from support.waiting import wait_until

from lerobot_serve.client import (
    ClientClosed,
    NO_CAGE,
    NotFinite,
    PolicyClient,
    PolicyFailed,
    PolicySession,
    QuotaUsedUp,
    ServerUnavailable,
    SessionRejected,
    Superseded,
    TooLate,
    WrongObservation,
    WrongSettings,
)
from lerobot_serve.client.fake_server import CAMERAS, FakeServer, NAMES
from lerobot_serve.contract.data_path.chunk import retry_after
from lerobot_serve.contract.schema import Codec, Flag, Refusal, Status
from lerobot_serve.contract.services.session import SessionRefused

FRONT = CAMERAS[0].name
STATE = (0.25, -0.5)
IMAGES = {FRONT: np.arange(72, dtype=np.uint8).reshape(4, 6, 3)}
QUICK_S = 0.05


@pytest.fixture
def client(server) -> Iterator[PolicyClient]:
    with PolicyClient(server.connection()) as made:
        yield made


@pytest.fixture
def session(client) -> PolicySession:
    return client.open(state_names=NAMES, action_names=NAMES, cameras=[FRONT])


def test_a_prediction_has_actions_policy_and_timings(server, session):
    chunk = session.predict(STATE, IMAGES, 'pick')
    assert chunk.actions.tolist() == [list(STATE)] * 3
    assert chunk.actions.flags.writeable and chunk.actions.dtype == np.float32
    assert (chunk.slot, chunk.policy, chunk.fingerprint) == ('prod', 'fake', server.fingerprint)
    assert (chunk.sequence, len(chunk), chunk.policy_changed) == (1, 3, False)
    assert (chunk.timings.queue_wait_ms, chunk.timings.inference_ms) == (1.0, 2.0)
    assert chunk.timings.network_ms == max(0.0, chunk.timings.round_trip_ms - 3.0)
    (asked,) = server.observations
    assert (asked.task, asked.episode_id) == ('pick', session.episode_id)
    assert asked.images[0].codec == Codec.RAW
    assert bytes(asked.images[0].data) == IMAGES[FRONT].tobytes()


def test_a_session_says_who_it_is_and_what_it_lacks(server, client):
    session = client.open(task='tidy up', tags=[('run', '7')])
    (request,) = server.opened
    assert (session.state_names, session.action_names) == (NAMES, NAMES)
    assert session.camera_names == (FRONT,)
    assert (request.client_id, request.task, request.fps) == ('client/tester', 'tidy up', 30.0)
    assert {tag.key: tag.value for tag in request.tags} == {
        'caller': 'lerobot_serve.client',
        'cage': 'none',
        'run': '7',
    }
    assert request.reply_deadline_s == session.timeout_s == 5.0
    assert session.warnings == (NO_CAGE,)
    assert session.chunk_steps == 3
    assert client.describe().camera_names == (FRONT,)


@pytest.mark.parametrize(
    ('state', 'images', 'words'),
    [
        ((1, 2, 3), IMAGES, 'state has 3 values, the session has 2; give one value for each of'),
        ('no', IMAGES, 'state is not an array of numbers'),
        ((1, float('nan')), IMAGES, 'NaN or infinity in elbow.pos'),
        (STATE, {}, f'no image of {FRONT}'),
        (STATE, {**IMAGES, 'back': IMAGES[FRONT]}, 'unknown cameras back'),
        (STATE, {FRONT: IMAGES[FRONT].transpose(2, 0, 1)}, r'transpose\(1, 2, 0\)'),
        (STATE, {FRONT: IMAGES[FRONT] / 255}, r'\(image \* 255\).astype'),
        (STATE, {FRONT: IMAGES[FRONT][:, :, 0]}, 'height x width x 3 of uint8'),
    ],
)
def test_a_wrong_observation_is_refused_before_it_is_sent(server, session, state, images, words):
    with pytest.raises(WrongObservation, match=words) as caught:
        session.predict(state, images)
    assert caught.value.remedy and not caught.value.may_retry
    assert not server.observations


@pytest.mark.parametrize(
    ('status', 'error'),
    [
        (Status.BAD_OBSERVATION, WrongObservation),
        (Status.POLICY_ERROR, PolicyFailed),
        (Status.NOT_FINITE, NotFinite),
        (Status.TOO_LATE, TooLate),
        (Status.NO_SLOT, ServerUnavailable),
        (Status.QUOTA, QuotaUsedUp),
        (99, PolicyFailed),
    ],
)
def test_each_status_has_an_error_with_the_words_of_the_server(server, session, status, error):
    server.receive = lambda asked: server.answer(asked, status=status, status_text='told why')
    with pytest.raises(error, match='told why') as caught:
        session.predict(STATE, IMAGES)
    assert caught.value.remedy


def test_a_used_up_quota_says_when_to_send_again(server, session):
    server.receive = lambda asked: server.answer(
        asked, status=Status.QUOTA, status_text='used up', extensions=(retry_after(2.5),)
    )
    with pytest.raises(QuotaUsedUp, match=r'used up; send the next request in 2.5 s') as caught:
        session.predict(STATE, IMAGES)
    assert (caught.value.retry_after_s, caught.value.may_retry) == (2.5, True)


def test_a_refused_first_request_leaves_the_start_of_the_episode_to_the_next_one(server, session):
    refuses = [True, True, False, False]
    admitted = server.receive

    def receive(asked):
        if refuses.pop(0):
            server.answer(asked, status=Status.QUOTA, extensions=(retry_after(0.001),))
        else:
            admitted(asked)

    server.receive = receive
    for _ in range(2):
        with pytest.raises(QuotaUsedUp):
            session.predict(STATE, IMAGES)
    for _ in range(2):
        session.predict(STATE, IMAGES)
    starts = [bool(asked.header.flags & Flag.EPISODE_START) for asked in server.observations]
    assert starts[-2:] == [True, False]


def test_actions_that_cannot_be_executed_are_refused(server, session):
    server.policy = lambda state: np.full((3, 2), np.nan)
    with pytest.raises(NotFinite):
        session.predict(STATE, IMAGES)
    server.policy = lambda state: np.zeros((3, 5))
    with pytest.raises(PolicyFailed, match=r'\(3, 5\), 2 actions were agreed'):
        session.predict(STATE, IMAGES)
    server.policy = lambda state: np.zeros((0, 2))
    with pytest.raises(PolicyFailed):
        session.predict(STATE, IMAGES)


def test_a_late_reply_is_not_taken_for_that_of_the_next_request(server, session):
    server.holds = True
    with pytest.raises(TooLate, match='raise timeout_s'):
        session.predict((1, 1), IMAGES, timeout_s=QUICK_S)
    thread, results = in_thread(lambda: session.predict((2, 2), IMAGES))
    wait_until(lambda: len(server.held) == 2, 'the second is sent')
    server.answer()
    server.answer()
    thread.join()
    assert (results[0].actions[0, 0], results[0].sequence) == (2, 2)
    assert session.counts['dropped_late_reply'] == 1


def test_of_three_calls_one_is_in_flight_and_the_newest_waits(server, session):
    server.holds = True
    first = in_thread(lambda: session.predict((1, 1), IMAGES))
    wait_until(lambda: len(server.held) == 1, 'the first is sent')
    second = in_thread(lambda: session.predict((2, 2), IMAGES))
    wait_until(lambda: session._plans.state.turns.waiting, 'the second waits')
    third = in_thread(lambda: session.predict((3, 3), IMAGES))
    second[0].join()
    assert isinstance(second[1][0], Superseded)
    assert len(server.observations) == 1
    server.answer()
    wait_until(lambda: len(server.held) == 1, 'the third is sent')
    server.answer()
    for thread, results in (first, third):
        thread.join()
        assert results[0].actions.shape == (3, 2)
    assert third[1][0].actions[0, 0] == 3
    assert session.counts['superseded'] == 1


def test_an_episode_has_a_number_a_name_and_a_first_request(server, session):
    session.predict(STATE, IMAGES)
    session.predict(STATE, IMAGES)
    name = session.begin_episode(task='second')
    session.predict(STATE, IMAGES)
    assert session.begin_episode(episode_id='mine') == 'mine'
    session.predict(STATE, IMAGES)
    headers = [asked.header for asked in server.observations]
    assert [header.episode for header in headers] == [0, 0, 1, 2]
    starts = [bool(header.flags & Flag.EPISODE_START) for header in headers]
    assert starts == [True, False, True, True]
    assert [asked.task for asked in server.observations] == ['', '', 'second', '']
    assert [asked.episode_id for asked in server.observations][2:] == [name, 'mine']
    assert [(reset.episode, reset.episode_id) for reset in server.resets] == [
        (1, name),
        (2, 'mine'),
    ]


def test_a_new_episode_ends_the_prediction_of_the_one_before(server, session):
    server.holds = True
    thread, results = in_thread(lambda: session.predict(STATE, IMAGES))
    wait_until(lambda: server.held, 'it is sent')
    session.begin_episode()
    thread.join()
    assert isinstance(results[0], Superseded) and 'episode ended' in str(results[0])
    server.answer()
    assert session.counts['dropped_late_reply'] == 1


@pytest.mark.parametrize('at', ['open', 'wait_until_matched', 'next_observation'])
def test_an_episode_that_ends_before_its_request_is_superseded(server, session, monkeypatch, at):
    """While the session is opened again, or just before; another thread observes for the next."""
    server.go()
    server.come_back()
    owner = session._plans.state if at == 'next_observation' else server.links['client/tester']
    method = getattr(owner, at)

    def begin_and_observe() -> None:
        session.begin_episode()
        session.observe(STATE, IMAGES)

    def begin_first(*arguments):
        monkeypatch.setattr(owner, at, method)
        in_thread(begin_and_observe)[0].join()
        return method(*arguments)

    monkeypatch.setattr(owner, at, begin_first)
    with pytest.raises(Superseded, match='its episode ended; await one prediction'):
        session.predict(STATE, IMAGES)
    assert not server.observations and len(server.opened) == 2
    assert session.predict(STATE, IMAGES).sequence == 1
    assert server.observations[0].header.flags & Flag.EPISODE_START


def test_a_server_that_comes_back_costs_time_and_no_error(server, session):
    session.predict(STATE, IMAGES)
    server.go()
    thread, results = in_thread(lambda: session.predict((7, 7), IMAGES))
    wait_until(lambda: session._plans.state.turns.running, 'it waits for the server')
    server.come_back()
    thread.join()
    assert results[0].actions[0, 0] == 7
    assert [request.client_id for request in server.opened] == ['client/tester', 'client/tester']
    first, second = server.opened
    assert first.instance == second.instance and first.session_epoch != second.session_epoch
    assert session.counts['sessions'] == 2


def test_a_server_that_goes_with_a_request_gets_it_again(server, session):
    server.holds = True
    thread, _ = in_thread(lambda: session.predict((7, 7), IMAGES))
    wait_until(lambda: server.held, 'it is sent')
    server.go()
    server.holds = False
    server.come_back()
    thread.join()
    assert [asked.state[0, 0] for asked in server.observations] == [7, 7]


def test_a_server_that_stays_away_is_unavailable_with_what_to_check(server, session):
    server.go()
    with pytest.raises(ServerUnavailable, match='is away; call come_back') as caught:
        session.predict(STATE, IMAGES, timeout_s=QUICK_S)
    assert caught.value.may_retry


@pytest.mark.parametrize('status', [Status.NO_SESSION, Status.DRAINING])
def test_a_lost_session_is_opened_again_within_the_call(server, session, status):
    answers = iter([{'status': status, 'status_text': 'who?'}, {}])
    server.receive = lambda asked: server.answer(asked, **next(answers))
    assert session.predict(STATE, IMAGES).sequence == 1
    assert session.counts['sessions'] == 2


def test_a_server_that_loses_each_session_is_given_up(server, session):
    server.receive = lambda asked: server.answer(
        asked, status=Status.NO_SESSION, status_text='who?'
    )
    with pytest.raises(ServerUnavailable, match='lost 5 times: who'):
        session.predict(STATE, IMAGES)


def test_another_policy_is_flagged_once(server, session):
    assert not session.predict(STATE, IMAGES).policy_changed
    server.fingerprint = 'other@1'
    changed = session.predict(STATE, IMAGES)
    assert changed.policy_changed and changed.policy == 'other'
    assert not session.predict(STATE, IMAGES).policy_changed


def test_a_policy_change_that_the_server_flags_is_flagged(server, session):
    def answer(asked) -> None:
        header = asked.header.for_reply(Flag.POLICY_CHANGED)
        server.answer(asked, header=header)

    server.receive = answer
    assert session.predict(STATE, IMAGES).policy_changed


def test_a_refusal_has_its_code_and_a_loading_server_is_waited_for(server, client):
    server.refusals.extend(
        [SessionRefused(Refusal.NOT_READY, 'loading'), SessionRefused(Refusal.NOT_READY, '...')]
    )
    client.open().close()
    server.refusals.append(SessionRefused(Refusal.ACTION_NAMES, 'the order differs'))
    with pytest.raises(SessionRejected, match='the order differs') as caught:
        client.open()
    assert caught.value.code is Refusal.ACTION_NAMES and not caught.value.may_retry
    server.refusals.append(SessionRefused(Refusal.CAPACITY, 'full'))
    with pytest.raises(SessionRejected) as caught:
        client.open()
    assert caught.value.may_retry


def test_a_server_that_stays_unready_is_unavailable_in_its_words(server, client):
    server.refusals.extend([SessionRefused(Refusal.NOT_READY, 'no weights')] * 50)
    with pytest.raises(ServerUnavailable, match='no weights'):
        client.open(timeout_s=0.2)


def test_each_session_has_a_name_of_its_own(server, client):
    sessions = [client.open(), client.open(), client.open(client_id='third')]
    assert [each.client_id for each in sessions] == [
        'client/tester',
        'client/tester.2',
        'client/third',
    ]
    with pytest.raises(WrongSettings, match='client/third has a session already'):
        client.open(client_id='third')
    sessions[0].close()
    assert client.open().client_id == 'client/tester'
    for number, each in enumerate(sessions[1:]):
        assert each.predict((number, number), IMAGES).actions[0, 0] == number


def test_messages_that_are_no_reply_are_counted(server, session):
    server.deliver('client/tester', b'?')
    session.predict(STATE, IMAGES)
    other = server.observations[0]
    server.links['other'] = server.links['client/tester']
    server.answer(other)
    server.answer(replace(other, client_id='other'))
    server.answer(replace(other, header=replace(other.header, session_epoch=1)))
    counts = session.counts
    assert counts['dropped_encapsulation'] == 1
    assert counts['dropped_late_reply'] == 2
    assert counts['dropped_wrong_client'] == 1


def test_what_is_closed_says_so(server, client, session):
    session.close()
    session.close()
    assert [request.client_id for request in server.closed] == ['client/tester']
    for call in (lambda: session.predict(STATE, IMAGES), session.begin_episode):
        with pytest.raises(ClientClosed, match='open another'):
            call()
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        client.open()


def test_closing_ends_a_prediction(server, session):
    server.holds = True
    thread, results = in_thread(lambda: session.predict(STATE, IMAGES))
    wait_until(lambda: server.held, 'it is sent')
    session.close()
    thread.join()
    assert isinstance(results[0], ClientClosed)


def test_a_policy_with_a_history_gets_it():
    server = FakeServer(observation_steps=3, stride_steps=2)
    with PolicyClient(server.connection()) as client:
        session = client.open()
        assert 'call observe() at each control step' in session.warnings[-1]
        session.predict((0, 0), IMAGES)
        for step in range(1, 5):
            session.observe((step, step), IMAGES)
        session.predict((5, 5), IMAGES)
        first, second = server.observations
        assert first.state[:, 0].tolist() == [0, 0, 0]
        assert second.state[:, 0].tolist() == [1, 3, 5]
        assert [image.steps_back for image in second.images] == [4, 2, 0]
        session.begin_episode()
        session.predict((9, 9), IMAGES)
        assert server.observations[-1].state[:, 0].tolist() == [9, 9, 9]


def test_a_history_keeps_the_images_of_a_buffer_that_is_used_again():
    server = FakeServer(observation_steps=2)
    buffer = np.zeros((4, 6, 3), np.uint8)
    with PolicyClient(server.connection()) as client, client.open() as session:
        session.observe((0, 0), {FRONT: buffer})
        buffer[:] = 200
        session.predict((1, 1), {FRONT: buffer})
        buffer[:] = 100
        session.predict((2, 2), {FRONT: buffer})
    seen = [[bytes(each.data)[0] for each in asked.images] for asked in server.observations]
    assert seen == [[0, 200], [200, 100]]


def test_a_server_that_comes_back_with_a_history_gets_the_images_of_their_moment(server, client):
    session, buffer = client.open(), np.zeros((4, 6, 3), np.uint8)
    server.observation_steps = 2
    server.go()
    server.come_back()
    for value in (100, 200):
        buffer[:] = value
        session.predict((value, value), {FRONT: buffer})
    seen = [[bytes(each.data)[0] for each in asked.images] for asked in server.observations]
    assert seen == [[100, 100], [100, 200]]


def test_one_observation_of_the_blocking_client_is_not_copied(session):
    images = {FRONT: np.zeros((4, 6, 3), np.uint8)}
    session.predict(STATE, images)
    ((observed, _),) = session._plans.state._history.rows()
    assert observed.frames[FRONT] is images[FRONT]


@pytest.mark.parametrize('episode_id', ['n' * 129, 'a\0b', 'line\nline', '\ud800'])
def test_an_episode_id_that_no_message_carries_is_refused_and_changes_nothing(
    server, session, episode_id
):
    before = session.episode_id
    with pytest.raises(WrongSettings, match=r'episode_id.*at most 128 bytes'):
        session.begin_episode(episode_id=episode_id)
    assert session.predict(STATE, IMAGES).episode_id == session.episode_id == before


def test_a_client_forgets_its_closed_sessions(client):
    for number in range(50):
        client.open(client_id=f'episode_{number}').close()
    assert len(client._connection.sessions) == 1


def test_an_interrupted_open_is_closed_at_the_server(server, client):
    """Ctrl-C after the request has gone out; the server accepts it."""
    link = server.links['client/tester']

    def interrupted(request, _) -> None:
        server.opened.append(request)
        raise KeyboardInterrupt

    link.open = interrupted
    with pytest.raises(KeyboardInterrupt):
        client.open()
    assert server.closed == server.opened != []


def test_a_refused_session_is_not_closed_at_the_server(server, client):
    server.refusals.append(SessionRefused(Refusal.ACTION_NAMES, 'the order differs'))
    with pytest.raises(SessionRejected):
        client.open()
    assert server.closed == []


def test_a_close_that_was_interrupted_is_completed_by_the_next_one(server, client, session):
    def interrupted(*_) -> None:
        raise KeyboardInterrupt

    session._plans.state.end = interrupted
    with pytest.raises(KeyboardInterrupt):
        session.close()
    del session._plans.state.end
    session.close()
    session.close()
    assert len(server.closed) == 1
