# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve outcome`: a wrong episode is answered with the nearest one that runs."""

from __future__ import annotations

import contextlib

import pytest
from support.tools.loading_fleet import LoadingFleet
from support.tools.operator_states import robot_of, router_of

from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.cli.operator_options import Operator

KNOWN = 'ep_2024_robot_1'


class Client(LoadingFleet):
    """A router that knows one episode, which a robot plays."""

    def report_outcome(self, router: str, episode: str, outcome: str, text: str):
        self.text = text
        return episode == KNOWN, '' if episode == KNOWN else f'no episode {episode!r}'


@pytest.fixture
def client(monkeypatch) -> Client:
    robots = [robot_of('/r1/edge', episode_id=KNOWN), robot_of('/r2/edge')]
    found = Client(router_of('/policy_router'), robots=robots)
    monkeypatch.setattr(Operator, 'client', lambda _: contextlib.nullcontext(found))
    return found


def test_it_says_what_it_will_do_and_who_did_it_and_does_not_ask(client, capsys):
    assert main(['outcome', KNOWN, 'failure', '--reason', 'it fell']) == 0
    printed = capsys.readouterr()
    assert f'/policy_router: will count episode {KNOWN} as failure' in printed.err
    assert printed.out.endswith(f'{KNOWN} counts as failure\n  by kim@lab\n')
    assert client.text == 'kim@lab: it fell'


@pytest.mark.parametrize(
    ('given', 'hint'),
    [('ep_2042_robot_1', ''), ('ep_2024_rbot_1', f'; did you mean {KNOWN}?'), ('x', '')],
)
def test_a_wrong_episode_is_answered_with_the_nearest_one(client, given, hint, capsys):
    assert main(['outcome', given, 'failure']) == 1
    text = f"/policy_router refuses: no episode '{given}'. Nothing was changed{hint}"
    assert capsys.readouterr().err.endswith(f'{text}\n')
