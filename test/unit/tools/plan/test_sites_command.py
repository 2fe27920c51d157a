# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve plan --sites`: its options, its text and its JSON; and the page of it."""

from __future__ import annotations

import json
import shlex

import pytest
from support.paths import REPOSITORY

from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.plan.command import SITE_OPTIONS

PAGE = (REPOSITORY / 'docs' / 'plan.md').read_text()
SMALL = ('plan', '--robots', '12', '--inference-ms', '150', '--rate-hz', '1', '--seconds', '20')


def printed(capsys, *given: str) -> str:
    main([*SMALL, *given])
    return capsys.readouterr().out


def test_one_site_alone_is_the_plan_of_a_fleet(capsys):
    assert printed(capsys, '--sites', '1') == printed(capsys)
    assert printed(capsys, '--sites', '1', '--json') == printed(capsys, '--json')
    assert 'router' not in printed(capsys, '--json')


@pytest.mark.parametrize('option', SITE_OPTIONS, ids=lambda option: option.name)
def test_each_option_has_an_effect(capsys, option):
    usual = printed(capsys, '--sites', '2', '--json')
    given = {'sites': '3', 'routers': '3', 'episode_s': '7'}.get(option.name, '0.5')
    assert printed(capsys, '--sites', '2', option.flags[0], given, '--json') != usual


def test_one_site_with_routers_is_a_plan_of_sites(capsys):
    text = printed(capsys, '--routers', '3')
    assert '1 site of 12 robots' in text
    assert '\n3 routers, 3 servers\n' in text
    assert 'one store for all' not in text


def test_programs_get_one_object(capsys):
    found = json.loads(printed(capsys, '--sites', '2', '--json'))
    assert list(found) == [
        'is_enough', 'sites', 'routers', 'servers', 'router_memory_mb', 'store_share', 'fleet',
        'service', 'costs', 'sizes', 'growth',
    ]  # fmt: skip
    (size,) = found['sizes']
    assert (size['sites'], size['robots'], size['routers'], size['missed_goals']) == (2, 6, 2, [])
    assert found['servers'] == 2 * size['servers']
    for name in ('normal', 'router_loss', 'server_loss', 'store_loss'):
        sums = size[name]
        ended = sums['answered'] + sums['superseded'] + sum(sums['lost'].values())
        assert sums['requests'] == ended
    assert found['growth']['first']['breaks'] == 'server'
    assert set(found['growth']['full_at_robots']) == {'router', 'server', 'store', 'shared_store'}


def test_what_misses_a_goal_is_status_1_and_named(capsys):
    assert main([*SMALL, '--sites', '2', '--routers', '1']) == 1
    text = capsys.readouterr().out
    assert 'each of them misses its goals with\n' in text
    assert '\n  after the loss of a router, none is left' in text


@pytest.mark.slow
def test_the_page_shows_what_is_printed(capsys):
    """10,000 robots at 20 sites: about 16 s of CPU."""
    command, _, rest = PAGE.partition('$ lerobot-serve plan --robots 10000')[2].partition('\n')
    shown = rest.partition('```')[0]
    assert main(shlex.split(f'plan --robots 10000{command}')) == 0
    assert capsys.readouterr().out == shown
