# SPDX-License-Identifier: Apache-2.0
"""An operator rolls back on the page: a real dashboard, router, servers and robot."""

from __future__ import annotations

from collections.abc import Iterator
import os
import subprocess
import sys
from urllib.parse import quote

from playwright.sync_api import BrowserContext, expect, Page
import pytest
from support.dashboard.browser import opened_tab
from support.nodes.edge_rig import EDGE, EdgeRig
from support.nodes.router_rig import ROUTER, RouterRig

from lerobot_serve_interfaces.msg import CanaryState

CODE = 'import sys; from lerobot_serve.tools.cli.main import main; sys.exit(main())'
REASON = 'v2 knocks things over'


@pytest.fixture
def robot(node, router_rig, tmp_path) -> Iterator[EdgeRig]:
    rigged = EdgeRig(node, router_rig.fleet, tmp_path)
    yield rigged
    rigged.end()


@pytest.fixture
def address(tmp_path) -> Iterator[str]:
    """The address of a dashboard, with its token."""
    words = ['dashboard', '--port', '0', '--print-token']
    environment = {**os.environ, 'ROS_HOME': str(tmp_path / 'operator')}
    with subprocess.Popen(
        [sys.executable, '-c', CODE, *words], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process.stdout.readline().split()[0]
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()


@pytest.fixture
def page(browser: BrowserContext, address: str) -> Iterator[Page]:
    url, fragment = address.split('/#')
    with opened_tab(browser, url) as tab:
        yield tab.open(f'#{fragment}')


@pytest.mark.slow
def test_an_abort_by_keyboard_rolls_back(
    router_rig: RouterRig, robot: EdgeRig, page: Page, wait_until
):
    router_rig.slots(split_percent=100, **{'canary.plan': "['50', '100']"})
    robot.start(servers=[ROUTER])
    robot.wait_for_play()
    expect(page.locator('.fleet:not(.head)')).to_contain_text('streaming')
    page.keyboard.press('2')
    phase = page.locator('main .verdict .state')
    expect(phase).to_have_text('running')
    expect(page.locator('.toward')).to_have_count(2)

    page.keyboard.press('A')
    expect(page.locator('#ask-text')).to_contain_text('Roll back steered@')
    page.keyboard.press('Shift+Tab')
    page.keyboard.press('Shift+Tab')
    page.keyboard.type(REASON)
    page.keyboard.press('Enter')
    expect(page.locator('.notice.done')).to_contain_text('rollout: running -> rolled back')
    expect(phase).to_have_text('rolled back')
    canary = router_rig.watch.last[CanaryState]
    assert canary.state == CanaryState.ROLLED_BACK
    assert '(dashboard)' in canary.text and REASON in canary.text
    expect(page.locator('main')).to_contain_text('barred')
    page.keyboard.press('4')
    expect(page.locator('.incident', has_text='rollback')).to_have_count(1)

    pause_and_resume(page, robot, wait_until)


def pause_and_resume(page: Page, robot: EdgeRig, wait_until) -> None:
    """Pause the robot in its view, where its joints are drawn, and resume it."""
    page.evaluate(f"location.hash = '#/robot/{quote(EDGE, safe='')}'")
    expect(page.locator('.joints canvas')).not_to_have_count(0)
    page.get_by_role('button', name='Pause', exact=True).click()
    expect(page.locator('#ask-text')).to_contain_text('to rest and hold it there')
    page.keyboard.press('Enter')
    wait_until(lambda: robot.seen.last.paused, 'the pause')
    expect(page.locator('.verdict .flag')).to_have_text('paused')
    page.get_by_role('button', name='Resume', exact=True).click()
    expect(page.locator('#ask-text')).to_contain_text('it may move at once')
    # the focus is on Cancel
    page.keyboard.press('Enter')
    expect(page.locator('#ask')).to_be_hidden()
    assert robot.seen.last.paused
    page.get_by_role('button', name='Resume', exact=True).click()
    page.locator('#ask-confirm').click()
    wait_until(lambda: not robot.seen.last.paused, 'the end of the pause')
