# SPDX-License-Identifier: Apache-2.0
"""Names of episodes at the router: each caller has its own, bounded in number."""

from __future__ import annotations

import pytest
from support.gateway.gateway_rig import GatewayRig, refusal, request

from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.contract.names import is_printable
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.episode_names import (
    EPISODES_LIMIT,
    EPISODES_PERIOD_S,
    OWNERS_LIMIT,
    scoped_name,
)
from lerobot_serve.gateway.callers.predictions import Status
from lerobot_serve.gateway.http.door import caller_of

HERE, AGAIN, THERE, NAMED = (
    Caller('openpi', '10.0.0.1:4000'),
    Caller('openpi', '10.0.0.1:4001'),
    Caller('openpi', '10.0.0.2:4000'),
    Caller('openpi', '10.0.0.1:4000', 'anna'),
)


async def named(rig: GatewayRig, caller: Caller, episode_id: str) -> str:
    session = await rig.gateway.session(caller)
    return (await session.predict(request(episode_id=episode_id))).episode_id


async def test_an_episode_belongs_to_its_caller_also_after_a_reconnection():
    rig = GatewayRig()
    names = [await named(rig, caller, 'ep_1') for caller in (HERE, AGAIN, THERE, NAMED)]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert all(name.startswith('ep_1~') for name in names)
    assert [asked.episode_id for _, asked in rig.upstream.requests] == names
    assert await named(rig, HERE, '') == ''
    # a name that was read elsewhere is another one, too
    assert await named(rig, THERE, names[0]) not in names


def test_over_http_an_episode_is_no_owner_of_episodes():
    def owner(**given: str) -> str:
        who = {'token_name': '', 'client_id': '', 'episode_id': 'e1', **given}
        return caller_of('http', '10.0.0.1', **who).episode_owner

    assert owner() == owner(episode_id='e2') == HERE.episode_owner
    assert len({owner(), owner(client_id='arm'), owner(token_name='anna')}) == 3


@pytest.mark.parametrize('name', ['ep', 'x' * ID_LIMIT, 'ü' * (ID_LIMIT // 2), 'a~' + '0' * 16])
def test_a_name_at_the_router_is_printable_and_bounded(name):
    found = scoped_name('10.0.0.1/', name)
    assert is_printable(found, ID_LIMIT)
    assert found != scoped_name('10.0.0.2/', name)
    assert found != scoped_name('10.0.0.1/', name[:-1])


async def test_a_caller_begins_no_more_episodes_than_allowed():
    rig = GatewayRig()
    for number in range(EPISODES_LIMIT):
        await named(rig, HERE, f'ep_{number}')
    refused = await refusal(named(rig, HERE, 'one more'))
    assert refused.status is Status.OVERLOADED
    assert refused.retry_after_s == EPISODES_PERIOD_S
    assert f'{EPISODES_LIMIT} are allowed' in refused.text
    # an episode that runs continues, and others begin theirs
    await named(rig, HERE, 'ep_0')
    await named(rig, THERE, 'one more')
    rig.now_s += EPISODES_PERIOD_S
    await named(rig, HERE, 'one more')
    assert rig.gateway.counters.refused == {('openpi', 'episode_forgotten'): 1}
    assert rig.gateway.counters.requests['openpi', 'overloaded'] == 1


async def test_owners_are_bounded_in_number():
    rig = GatewayRig(max_callers=1)
    names = rig.gateway._episode_names
    for number in range(OWNERS_LIMIT + 5):
        names.name_at_router(Caller('http', f'host{number}:1'), 'e')
    assert len(names._begun_s) == OWNERS_LIMIT
