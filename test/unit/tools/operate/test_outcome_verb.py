# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve outcome`: a wrong episode is answered with the nearest one that runs."""

from __future__ import annotations

from argparse import Namespace

import pytest
from support.tools.operator_states import robot_of, router_of

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli.verbs import outcome
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView

KNOWN = 'ep_2024_robot_1'


class Client:
    """A router that knows one episode, which a robot plays."""

    operator = 'kim@lab'

    def find_routers(self, wanted: str) -> list[str]:
        return ['/policy_router']

    def known_routers(self) -> dict[str, float]:
        return {}

    def router(self, name: str) -> RouterView:
        return router_of(name)

    def find_robots(self, *, may_be_none: bool) -> list[RobotView]:
        return [robot_of('/r1/edge', episode_id=KNOWN), robot_of('/r2/edge')]

    def report_outcome(self, router: str, episode: str, outcome: str, text: str):
        self.text = text
        return episode == KNOWN, '' if episode == KNOWN else f'no episode {episode!r}'


def options(episode: str) -> Namespace:
    return Namespace(
        episode=episode, outcome='failure', reason='it fell', router='', yes=False, json=False
    )


def test_it_says_what_it_will_do_and_who_did_it_and_does_not_ask(capsys):
    client = Client()
    assert outcome.report(client, options(KNOWN)) == 0
    printed = capsys.readouterr()
    assert f'/policy_router: will count episode {KNOWN} as failure' in printed.err
    assert printed.out.endswith(f'{KNOWN} counts as failure\n  by kim@lab\n')
    assert client.text == 'kim@lab: it fell'


@pytest.mark.parametrize(
    ('given', 'hint'),
    [('ep_2042_robot_1', ''), ('ep_2024_rbot_1', f'; did you mean {KNOWN}?'), ('x', '')],
)
def test_a_wrong_episode_is_answered_with_the_nearest_one(given, hint, capsys):
    with pytest.raises(UserError) as refused:
        outcome.report(Client(), options(given))
    text = f"/policy_router refuses: no episode '{given}'. Nothing was changed{hint}"
    assert str(refused.value) == text
