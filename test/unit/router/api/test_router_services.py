# SPDX-License-Identifier: Apache-2.0
"""The router's services without ROS: what is awaited is done at once by the rig."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace
import pytest
from support.contract.session_request import session_request
from support.router.episodes import request
from support.router.router_core_rig import RoutingRig

from lerobot_serve.contract.limits import REASON_LIMIT
from lerobot_serve.contract.records import OpenSessionRequest, OpenSessionResponse
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.ros.contract.session_messages import message_of
from lerobot_serve.router.api.services import RouterServices
from lerobot_serve.router.api.slot_commands import SlotCommandRejected
from lerobot_serve.router.core import RouterCore
from lerobot_serve_interfaces.msg import EpisodeOutcome, ServerStatus
from lerobot_serve_interfaces.srv import (
    CloseSession,
    ControlSlot,
    GetStatus,
    OpenSession,
    ReportOutcome,
    ResetEpisode,
)


class Replies:
    """Reply topics that are open; the executor's threads must come one at a time."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.is_alone = lambda: False

    def open(self, topic: str) -> None:
        assert self.is_alone()
        self.topics.add(topic)

    def retain(self, topics: set[str]) -> None:
        # one that is opened between the look at what is needed and this would be closed
        assert self.is_alone()
        self.topics &= topics


class Host:
    """The node; its control thread works at once, or is over."""

    def __init__(self, rig: RoutingRig) -> None:
        self.rig = rig
        self.core: RouterCore | None = rig.core
        rig.core.is_open = True
        self.server_state = ServerStatus.ACTIVE, ''
        self.is_over = False
        self.before_work = lambda: None
        self.warned: list[str] = []
        self.looks = 0
        # why what is queued for the store is not in it
        self.not_durable = ''

    async def run_in_control_thread(self, core, work):
        assert core is not None
        if self.is_over:
            raise SessionRefused(Refusal.DRAINING, 'it is over')
        await asyncio.sleep(0)
        self.before_work()
        return work()

    async def until_durable(self, core) -> str:
        await asyncio.sleep(0)
        return self.not_durable

    def poll(self) -> None:
        self.looks += 1

    def status(self) -> ServerStatus:
        return ServerStatus(state=self.server_state[0])

    def warn(self, text: str) -> None:
        self.warned.append(text)


def read_ask(request: OpenSession.Request) -> OpenSessionRequest:
    names = tuple(request.action_names)
    return session_request(
        request.client_id, request.session_epoch, request.reply_topic, names, fps=10.0
    )


class Rig:
    """See the module."""

    def __init__(self, folder) -> None:
        self.rig = RoutingRig(folder)
        for client in self.rig.clients.values():
            client.open = self.opened(client.open)
        self.host, self.replies = Host(self.rig), Replies()
        self.services = RouterServices(
            self.host,
            self.replies,
            self.rig.drops,
            read_ask,
            message_of,
            '/policy_router/observation',
        )

        self.replies.is_alone = self.services._topics_lock.locked

    @staticmethod
    def opened(open_session):
        def act(ask: OpenSessionRequest, timeout_s: float) -> OpenSessionResponse:
            open_session(ask, timeout_s)
            return OpenSessionResponse(accepted=True, observation_steps=1, chunk_size=10)

        return act

    @property
    def drops(self) -> dict[str, int]:
        return self.rig.drops.counts()

    async def open(self, name: str = 'robot', epoch: int = 1) -> OpenSession.Response:
        request = OpenSession.Request(
            client_id=name, session_epoch=epoch, reply_topic=f'/{name}/chunk'
        )
        return await self.services.open(request, OpenSession.Response())

    def do(self, awaitable):
        return asyncio.run(awaitable)

    def close(self, name: str = 'robot', epoch: int = 1) -> CloseSession.Response:
        request = CloseSession.Request(client_id=name, session_epoch=epoch)
        return self.do(self.services.close(request, CloseSession.Response()))

    def reset(self, name: str = 'robot') -> ResetEpisode.Response:
        request = ResetEpisode.Request(client_id=name, session_epoch=1, episode=1)
        return self.do(self.services.reset(request, ResetEpisode.Response()))


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    made.rig.close()


def test_a_session_is_opened_reset_and_closed(rig):
    reply = rig.do(rig.open())
    assert (reply.accepted, reply.chunk_size) == (True, 10)
    assert reply.observation_topic == '/policy_router/observation'
    assert rig.replies.topics == {'/robot/chunk'}
    assert rig.reset().acknowledged
    assert rig.close().closed
    assert rig.replies.topics == set()
    again = rig.close()
    assert (again.closed, again.text) == (False, "'robot' has no session of epoch 1")
    assert 'no session of epoch 1' in rig.reset().text


def test_who_is_refused_leaves_no_topic_behind(rig):
    for client in rig.rig.clients.values():
        client.refuses = Refusal.ACTION_NAMES
    reply = rig.do(rig.open())
    assert (reply.accepted, reply.code) == (False, Refusal.ACTION_NAMES)
    assert rig.replies.topics == set()
    assert rig.drops['refused_action_names'] == 1
    assert rig.host.warned[0].startswith("refused 'robot': slot a (")


def test_a_refusal_in_any_language_is_one_that_clients_read(rig):
    reason = '任务不同' * 500

    def refuse(_) -> OpenSessionRequest:
        raise SessionRefused(Refusal.TASK_PINNED, reason)

    rig.services._read_request = refuse
    reply = rig.do(rig.open())
    assert reason.startswith(reply.reason)
    assert REASON_LIMIT - 3 < len(reply.reason.encode()) <= REASON_LIMIT


def test_slots_with_different_histories_take_nobody(rig):
    for name, client in rig.rig.clients.items():
        first = client.open

        def act(ask, timeout_s, first=first, steps=2 if name == '/b1' else 1):
            return replace(first(ask, timeout_s), observation_steps=steps)

        client.open = act
    reply = rig.do(rig.open())
    assert (reply.accepted, reply.code) == (False, Refusal.NOT_READY)
    assert 'different observation histories' in reply.reason
    assert not any(client.sessions for client in rig.rig.clients.values())
    assert len(rig.rig.core.table.sessions) == 0


def test_before_and_after_its_time_it_says_what_to_do(rig):
    rig.host.core.is_open = False
    rig.host.server_state = ServerStatus.INACTIVE, 'configured; activate it to route'
    reply = rig.do(rig.open())
    assert (reply.code, reply.reason) == (
        Refusal.NOT_READY,
        'not ready: configured; activate it to route',
    )
    rig.host.core.is_drained = True
    reply = rig.do(rig.open())
    assert (reply.code, 'draining' in reply.reason) == (Refusal.DRAINING, True)
    rig.host.core = None
    assert rig.do(rig.open()).code == Refusal.NOT_READY
    assert not rig.close().closed
    assert 'configure and activate it' in rig.reset().text
    assert rig.drops == {'refused_not_ready': 2, 'refused_draining': 1}


def test_who_waits_while_the_router_goes_is_refused(rig):
    def go() -> None:
        rig.host.core.is_open, rig.host.core.is_drained = False, True

    rig.host.before_work = go
    assert rig.do(rig.open()).code == Refusal.DRAINING
    assert not any(client.sessions for client in rig.rig.clients.values())


def test_who_comes_after_the_end_is_told(rig):
    rig.do(rig.open())
    rig.host.is_over = True
    assert rig.do(rig.open('late')).code == Refusal.DRAINING
    assert rig.close().text == 'it is over'
    assert rig.reset().text == 'it is over'
    assert rig.replies.topics == {'/robot/chunk'}


def test_a_topic_is_not_closed_while_its_session_is_being_opened(rig):
    """Another thread may look for topics that nobody needs at any moment."""
    rig.host.before_work = rig.services.close_unused_reply_topics
    assert rig.do(rig.open()).accepted
    assert rig.replies.topics == {'/robot/chunk'}


def test_several_are_opened_at_once(rig):
    async def all_of_them() -> list[OpenSession.Response]:
        return await asyncio.gather(*(rig.open(f'robot_{number}') for number in range(8)))

    assert all(reply.accepted for reply in rig.do(all_of_them()))
    assert len(rig.replies.topics) == 8


def control(rig: Rig, command: int, slot: str = '', reason: str = '') -> ControlSlot.Response:
    request = ControlSlot.Request(command=command, slot=slot, reason=reason)
    return rig.do(rig.services.control_slot(request, ControlSlot.Response()))


def test_an_operators_word_is_done_said_and_looked_at(rig):
    answer = control(rig, ControlSlot.Request.DRAIN, 'b', 'it smells')
    assert answer.success
    assert rig.host.warned == [
        'slot b receives no new episodes; running ones leave at their end, within 60 s '
        '(an operator: it smells)'
    ]
    assert rig.host.looks == 1
    answer = control(rig, 77, 'b')
    assert (answer.success, 'unknown command 77' in answer.text) == (False, True)
    rig.host.core = None
    answer = control(rig, ControlSlot.Request.RESTORE, 'b')
    assert (answer.success, 'configure' in answer.text) == (False, True)
    assert rig.host.looks == 1


def test_a_rollout_is_finished_also_where_no_session_can_be_opened(rig):
    """What changes the traffic takes effect, whatever its preparation does."""
    rig.host.is_over = True
    core = rig.rig.core
    assert core.slots['a'].policy != core.slots['b'].policy
    answer = control(rig, ControlSlot.Request.CANARY_FINISH)
    # it came as far as the check of the command itself
    assert (answer.success, 'load it there first' in answer.text) == (False, True)
    assert rig.drops == {'open_unreachable': 1}
    assert any('opened later' in text for text in rig.host.warned)


def outcome(rig: Rig, episode_id: str, how: int) -> ReportOutcome.Response:
    told = EpisodeOutcome(episode_id=episode_id, outcome=how)
    request = ReportOutcome.Request(outcome=told)
    return asyncio.run(rig.services.report_outcome(request, ReportOutcome.Response()))


def test_an_outcome_that_does_not_count_says_why(rig):
    answer = outcome(rig, 'nobody', EpisodeOutcome.SUCCESS)
    assert (answer.accepted, "no episode 'nobody'" in answer.text) == (False, True)
    assert rig.drops == {'outcome_unknown': 1}
    rig.host.core = None
    assert 'configure' in outcome(rig, 'nobody', EpisodeOutcome.SUCCESS).text


def test_an_outcome_that_is_not_durable_is_not_accepted_and_the_robot_reports_it_again(rig):
    request(rig.rig, 'episode')
    assert rig.rig.core.table.stats.is_of('episode', 'robot')
    rig.host.not_durable = 'the disk is full'
    answer = outcome(rig, 'episode', EpisodeOutcome.FAILURE)
    assert not answer.accepted
    assert 'the disk is full' in answer.text and 'report it again' in answer.text
    told = EpisodeOutcome(client_id='robot', episode_id='episode', outcome=EpisodeOutcome.FAILURE)
    own = rig.services.report_own_outcome(
        ReportOutcome.Request(outcome=told), ReportOutcome.Response()
    )
    # over Zenoh no reply is one that the robot repeats
    with pytest.raises(SlotCommandRejected, match='the disk is full'):
        asyncio.run(own)
    rig.host.not_durable = ''
    answer = outcome(rig, 'episode', EpisodeOutcome.FAILURE)
    assert answer.accepted and 'was reported before' in answer.text


def test_its_status_is_told_configured_or_not(rig):
    for core in (rig.host.core, None):
        rig.host.core = core
        told = rig.services.get_status(GetStatus.Request(), GetStatus.Response())
        assert told.status.state == ServerStatus.ACTIVE
        assert told.schema_version_max >= 1
