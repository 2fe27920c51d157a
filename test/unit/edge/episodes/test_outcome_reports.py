# SPDX-License-Identifier: Apache-2.0
"""Outcomes wait for the router, are sent again without a reply, and are bounded."""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.contract.records import EpisodeOutcome
from lerobot_serve.edge.episode_outcomes import LIMIT, OutcomeReports, RETRY_NS, TRIES


class Client:
    """A client of a router; the test gives its replies."""

    def __init__(self) -> None:
        self.is_there, self.sent = True, []
        self.replies: list[Callable[[bool, str], None]] = []

    def is_available(self) -> bool:
        return self.is_there

    def report_outcome(self, request, on_reply, /) -> None:
        self.sent.append(request.outcome.episode_id)
        self.replies.append(on_reply)


class Robot:
    def __init__(self) -> None:
        self.client, self.server = Client(), 'zenoh:/router'
        self.clients = {self.server: self.client}
        self.now_ns, self.dropped, self.logged = 0, [], []
        self.reports = OutcomeReports(
            'robot_1',
            self.clients,
            lambda: self.server,
            lambda: self.now_ns,
            count_dropped=self.dropped.append,
            log_warning=self.logged.append,
        )

    def report(self, episode_id: str, client_id: str = '') -> None:
        self.reports.add(EpisodeOutcome(episode_id=episode_id, client_id=client_id, outcome=1))

    def poll_after(self, periods: int = 1) -> None:
        for _ in range(periods):
            self.now_ns += RETRY_NS
            self.reports.poll()


def test_an_outcome_is_sent_until_the_router_replies():
    robot = Robot()
    robot.report('one')
    robot.reports.poll()
    assert robot.client.sent == ['one']
    robot.poll_after(2)
    assert robot.client.sent == ['one'] * 3
    robot.client.replies[0](True, '')
    robot.client.replies[1](True, '')
    robot.poll_after(2)
    assert robot.client.sent == ['one'] * 3
    assert not robot.dropped and not robot.logged


def test_a_refusal_is_logged_and_counted_once():
    robot = Robot()
    robot.report('one')
    robot.poll_after()
    for reply in robot.client.replies:
        reply(False, 'no such episode')
    assert robot.dropped == ['outcome_refused']
    assert robot.logged == ['the router refuses the outcome of one: no such episode']


def test_an_outcome_waits_while_the_router_is_away():
    robot = Robot()
    robot.client.is_there = False
    robot.report('one')
    robot.poll_after(2 * TRIES)
    assert robot.client.sent == []
    robot.client.is_there = True
    robot.poll_after()
    assert robot.client.sent == ['one']


def test_a_server_that_never_replies_keeps_no_outcomes():
    robot = Robot()
    robot.report('one')
    robot.poll_after(3 * TRIES)
    assert robot.client.sent == ['one'] * TRIES
    assert robot.dropped == ['outcome_unsent']


def test_what_waits_is_bounded_and_the_oldest_is_counted():
    robot = Robot()
    robot.client.is_there = False
    for number in range(LIMIT + 3):
        robot.report(f'{number}')
    assert robot.dropped == ['outcome_unsent'] * 3
    robot.client.is_there = True
    robot.poll_after()
    assert robot.client.sent == [f'{number}' for number in range(3, LIMIT + 3)]


def test_only_outcomes_of_this_robot_are_sent_and_only_where_a_link_can():
    robot = Robot()
    robot.report('another', client_id='robot_2')
    robot.report('own', client_id='robot_1')
    assert robot.client.sent == ['own']
    # over ROS 2 who judges publishes to the router
    robot = Robot()
    robot.clients.clear()
    for number in range(2 * LIMIT):
        robot.report(f'over ROS {number}')
    robot.clients[robot.server] = robot.client
    robot.poll_after()
    assert not robot.client.sent and not robot.dropped


def test_an_outcome_waits_while_a_server_over_ros_stands_in_for_the_router():
    robot = Robot()
    router = robot.client
    router.is_there = False
    robot.report('one')
    over_zenoh, robot.server = robot.server, '/policy_server'
    robot.poll_after(2 * TRIES)
    robot.report('two')
    # also between two servers
    robot.server = ''
    robot.poll_after()
    assert (router.sent, robot.dropped) == ([], [])
    robot.server, router.is_there = over_zenoh, True
    robot.poll_after()
    assert router.sent == ['one', 'two']
