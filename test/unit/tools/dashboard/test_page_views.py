# SPDX-License-Identifier: Apache-2.0
"""What each view of the page shows, in a real browser; a page that breaks its policy fails."""

from __future__ import annotations

from playwright.sync_api import expect
import pytest
from support.dashboard.browser import opened_tab, wait_for
from support.dashboard.example_fleet import (
    fleet,
    HOSTILE,
    incident,
    learner,
    node_of,
    robot,
    robots,
    router,
    TEXTS,
    V1,
    V2,
)
from support.dashboard.example_fleet import (
    server as server_row,
)
from support.dashboard.page_server import now_ms, TOKEN

from lerobot_serve.tools.dashboard.document.rows import SILENT_RANK

VIEWS = ('fleet', 'rollout', 'servers', 'incidents', 'robot', 'verdicts')
NAMES = '.cell-name a'
pytestmark = pytest.mark.long
ROBOT_BOUND = 300
# 25 elements a row, and the frame
NODE_BOUND = 25 * ROBOT_BOUND + 500

# remembers the rows, and each element that comes after them
WATCH_ROWS = """() => {
  window.rows = [...document.querySelectorAll('.fleet:not(.head)')];
  window.added = [];
  const isNew = (node) => node.nodeType === 1 && !window.rows.includes(node);
  const note = (record) => [...record.addedNodes].filter(isNew)
    .forEach((node) => window.added.push(node.outerHTML));
  new MutationObserver((records) => records.forEach(note))
    .observe(document.querySelector('main'), {childList: true, subtree: true});
}"""

# a phone, two tablets and a laptop
WIDTHS = (360, 720, 1024, 1280)
NEXT_FRAMES = """() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"""
# what is wider than the page although nothing scrolls; a box that clips hides it
BEYOND_THE_EDGE = """() => [...document.querySelectorAll('main *, header *')]
  .filter((node) => node.getClientRects().length && !node.closest('.hear, .clip, canvas'))
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
  .map((node) => node.outerHTML.slice(0, 120))"""


def names(page) -> list[str]:
    return page.locator(NAMES).all_text_contents()


def test_the_fleet_is_listed_worst_first(tab, server):
    page = tab.open()
    states = ('DEAD', 'STALLED', 'RECONNECTING', 'CONNECTING', 'DEGRADED', 'STREAMING')
    shown = page.locator('.fleet:not(.head) .cell-state .state').all_text_contents()
    assert shown == [state.lower() for state in states]
    server.put('robots', node_of('robot_0'), robot('robot_0', 'DEAD', rank=0, stopped=True))
    expect(page.locator(NAMES).first).to_have_text('robot_0')
    expect(page.locator('.worst')).to_contain_text('robot_0: dead, no command')
    expect(page.locator('.worst')).to_contain_text(TEXTS['DEAD'][1:])
    expect(page.locator('.chip', has_text='dead')).to_have_text('2dead')


def test_robots_are_sorted_by_number_and_the_filter_finds_them(tab, server):
    for number in (20, 3, 100):
        name = f'arm_{number}'
        server.put('robots', node_of(name), robot(name))
    page = tab.open()
    page.keyboard.press('/')
    page.keyboard.type('ARM streaming')
    expect(page.locator(NAMES)).to_have_text(['arm_3', 'arm_20', 'arm_100'])
    expect(page.locator('.bar-row')).to_contain_text('3 of 9 robots')
    page.keyboard.press('Escape')
    expect(page.locator(NAMES)).to_have_count(9)


def test_a_router_in_trouble_is_named_on_top(tab, server):
    server.change('routers', '/policy_router', health='slot_b_drained', text='drained by kim')
    expect(tab.open().locator('.routers')).to_have_text(
        '/policy_router: slot b drained, drained by kim'
    )


def test_the_rollout_shows_plan_evidence_guards_and_what_is_missing(tab):
    page = tab.open('#/rollout')
    main = page.locator('main')
    for text in (
        *('step 1 of 3, 25 % of new episodes', '37 of 30 episodes'),
        *('0.42 of 1.30', '0.91 of 1.78', '0.49%, limit 2%, 76 % left', 'above the limit'),
        *('limit 5%; no data yet', 'about 12 more of the candidate'),
        *('24 minutes at the present rate', '28 of 37 succeeded', '371 of 393 succeeded'),
        *('rollout running, 25 % to slot b', 'reach_v2@5f1c09aa'),
    ):
        expect(main).to_contain_text(text)
    expect(page.locator('.steps li')).to_have_text(['25 %', '50 %', '100 %'])
    expect(page.locator('.steps li[aria-current]')).to_have_text('25 %')
    expect(page.locator('.plot canvas')).to_be_visible()
    verbs = page.locator('main .acts button').all_text_contents()
    assert verbs[:-1] == [
        *('Start', 'Pause', 'Resume', 'Promote', 'Finish', 'Undo', 'Stop'),
        *('Split', 'Drain', 'Restore'),
    ]
    assert verbs[-1].startswith('Abort')


def test_several_routers_have_a_rollout_each(tab, server):
    server.put('routers', '/other_router', router('PAUSED', rollout={'state': 'PAUSED'}))
    page = tab.open('#/rollout/%2Fother_router')
    expect(page.locator('.verdict .state')).to_have_text('paused')
    page.get_by_role('combobox', name='Router').select_option('/policy_router')
    expect(page.locator('.verdict .state')).to_have_text('running')
    assert page.url.endswith('#/rollout/%2Fpolicy_router')


def test_a_learner_shows_progress_loss_and_its_estimated_end(tab, server):
    page = tab.open('#/rollout')
    card = page.get_by_role('region', name='Learners').locator('.learner')
    expect(card).to_have_count(1)
    for text in (
        *('/learner', 'training', 'round 3', '42 %', '0.0312', 'about 13 min'),
        *('17 of 50 new, 120 in all', 'reach_v1@41ab77c0', 'reach_v2@5f1c09aa'),
        *('12 other host', 'round 3: trains'),
    ):
        expect(card).to_contain_text(text)
    bar = card.locator('.bar > i')
    assert bar.evaluate('node => node.style.transform') == 'scaleX(0.42)'
    server.change('learners', '/learner', progress=0.999, has_diverged=True, loss=None)
    expect(card).to_contain_text('99 %')
    expect(card).to_contain_text('infinite')
    server.change('learners', '/learner', progress=None, remaining_s=None, has_diverged=False)
    expect(card.locator('.toward')).to_contain_text('not known yet')
    failed = learner('WAITING', text='round 3 failed: no space left', progress=None)
    server.put('learners', '/learner', failed)
    expect(card.locator('.toward')).to_be_hidden()
    expect(card).to_contain_text('last round 3')
    expect(card).to_contain_text('round 3 failed: no space left')


def test_learners_are_shown_without_a_router_and_without_one_there_is_no_panel(browser, serve):
    server = serve({'learners': {'/b': learner(), '/a': learner('PAUSED')}})
    with opened_tab(browser, server.url) as tab:
        page = tab.open('#/rollout')
        expect(page.locator('.learner b')).to_have_text(['/a', '/b'])
        expect(page.locator('main')).to_contain_text('No router is seen yet')
    server = serve({'routers': {'/policy_router': router()}})
    with opened_tab(browser, server.url) as tab:
        page = tab.open('#/rollout')
        expect(page.locator('.verdict .state')).to_have_text('running')
        expect(page.locator('.learners')).to_be_hidden()


def test_servers_show_load_and_drops(tab):
    page = tab.open('#/servers')
    row = page.locator('.server:not(.head)').last
    for text in (
        '/v2/policy_server',
        '93 %',
        '29.8 ms',
        '4.2 ms',
        '1.84 GB',
        '8 / 16',
        '2 too late',
    ):
        expect(row).to_contain_text(text)


def test_incidents_are_newest_first_and_explain_themselves(tab, server):
    page = tab.open('#/incidents')
    expect(page.locator('.incident')).to_have_count(3)
    server.put('incidents', '9', incident(9, 'cage', 'error', 'robot_1', 'latched'))
    expect(page.locator('.incident b').first).to_have_text('robot_1')
    expect(page.locator('#announce')).to_have_text('cage, robot_1: latched')
    page.locator('.incident > button', has_text='robot_3').click()
    expect(page.locator('.incident pre')).to_contain_text('remedy: max_sessions 12')
    link = page.get_by_role('link', name='capture_3.mcap (1.8 MB)')
    assert link.get_attribute('href') == '/api/captures?name=capture_3.mcap'
    page.reload()
    expect(page.locator('.incident pre')).to_contain_text('remedy')


def test_a_robot_shows_images_plan_ladder_and_cage(tab, server):
    page = tab.open(f'#/robot/{node_of("robot_1").replace("/", "%2F")}')
    main = page.locator('main')
    expect(page.locator('.joint-head b')).to_have_count(6)
    expect(page.locator('.joints canvas')).to_have_count(6)
    for text in ('CLAMPED: gripper above 0.56', 'put the cube in the bin', 'top, request 12'):
        expect(main).to_contain_text(text)
    expect(main).to_contain_text('Ladder: ramp 1.0 s, hold 3.0 s. Cage: ')
    wait_for(
        page,
        "[...document.querySelectorAll('.cameras img')].filter(i => i.naturalWidth).length === 2",
    )
    server.change('robots', node_of('robot_1'), reason='changed while shown')
    expect(main).to_contain_text('changed while shown')


def test_the_view_of_an_unknown_robot_says_so(tab):
    page = tab.open('#/robot/%2Fnobody')
    expect(page.locator('main')).to_contain_text('No robot is named /nobody.')
    page.get_by_role('combobox', name='Robot').select_option('robot_6')
    expect(page.locator('.joint-head b')).to_have_count(6)


def test_a_stream_of_a_robot_that_is_refused_says_why(tab, server):
    page = tab.page
    refusal = {'status': 503, 'json': {'error': 'too many robots are looked at'}}
    page.route('**/api/robots/stream*', lambda route: route.fulfill(**refusal))
    page = tab.open('#/robot')
    expect(page.locator('main')).to_contain_text('Too many robots are looked at')
    page.unroute('**/api/robots/stream*')
    expect(page.locator('.joint-head b')).to_have_count(6)


def test_the_blind_view_shows_no_slot_and_no_policy(tab, server):
    server.change('robots', node_of('robot_1'), reason=f'slot a: {V1} replies late')
    server.change('routers', '/policy_router', health='slot_b_drained', text=f'{V2} of slot b')
    page = tab.open(f'#token={TOKEN}')
    abort_without_an_effect(page, server)
    for view in ('rollout', 'servers', 'incidents', 'robot'):
        page.goto(f'{server.url}/#/{view}')
        expect(page.locator('main')).to_contain_text('reach_v')
    page.keyboard.press('6')
    expect(page.locator('.episode')).to_have_count(2)
    server.put('incidents', '9', incident(9, 'policy_changed', 'info', 'robot_1', f'to {V2}'))
    server.change('episodes', 'ep-4', ended='18:05:00')
    expect(page.locator('.episode')).to_have_count(3)
    # longer than announcements wait
    page.wait_for_timeout(2500)
    page.evaluate("document.querySelectorAll('script, style').forEach(each => each.remove())")
    html = page.content() + page.title()
    for secret in (V1, V2, 'reach', 'slot', 'candidate', 'champion', 'canary'):
        assert secret not in html.lower(), secret
    page.keyboard.press('1')
    expect(page.locator('.notice')).to_contain_text('100 % to slot a')


def abort_without_an_effect(page, server):
    """Leave a sentence in the dialog and an error on the page, which both name a slot."""
    server.text = f'roll back {V2} of slot b'
    page.keyboard.press('a')
    expect(page.locator('#ask-text')).to_contain_text('slot b')
    server.answer = lambda _: (504, {'error': 'UNKNOWN: 100 % to slot a'})
    page.keyboard.press('Enter')
    expect(page.locator('.notice')).to_be_visible()


def test_hostile_names_are_text(browser, serve):
    script, quote, handler = HOSTILE
    node = f'/{script}{quote}/__proto__'
    row = robot(script, 'STALLED', reason=quote, policy=handler, slot=script, task=script)
    server = serve(
        {
            'robots': {node: row, '__proto__': row},
            'routers': {script: router(health=quote, text=script)},
            'servers': {
                quote: server_row(quote, text=script, policy=handler, dropped={script: 1})
            },
            'learners': {
                node: learner(state=script, text=script, parent=quote, latest=handler),
                '__proto__': learner(dropped={script: 1, '__proto__': 2}, loss=script),
            },
            'incidents': {script: incident(1, script, quote, handler, script)},
            'episodes': {quote: {'robot': script, 'task': quote, 'began': '1', 'ended': script}},
        }
    )
    with opened_tab(browser, server.url) as tab:
        tab.page.on('dialog', lambda dialog: tab.errors.append(f'dialog {dialog.message}'))
        for view in VIEWS:
            page = tab.open(f'#/{view}/{script}')
            expect(page.locator(f'nav a[data-view={view}][aria-current]')).to_be_visible()
            page.goto(f'{server.url}/#/{view}')
            shown = quote if view == 'servers' else script
            expect(page.locator('body')).to_contain_text(shown)
            if view == 'incidents':
                page.locator('.incident > button').click()
                expect(page.locator('pre')).to_be_visible()
            assert page.locator('body [onerror], body [onload], main script').count() == 0
            assert page.evaluate('({}).name') is None


def test_what_is_silent_is_grey_with_its_age_and_without_values(tab, server):
    page = tab.open()
    since = now_ms() - 12_000
    server.change('robots', node_of('robot_6'), silent_since_ms=since, rank=SILENT_RANK)
    row = page.locator('.fleet.silent')
    expect(row.locator('.cell-state')).to_contain_text('silent 1')
    assert row.locator('.cell-buffer').inner_text() == '-'
    assert row.locator('.cell-age').inner_text().strip() == '-'
    struck = row.locator('.policy').evaluate('node => getComputedStyle(node).textDecorationLine')
    assert struck == 'line-through'
    server.change('servers', '/v2/policy_server', silent_since_ms=since)
    page.keyboard.press('3')
    row = page.locator('.server.silent')
    expect(row).to_contain_text('silent 1')
    assert '93 %' not in row.inner_text()
    server.change('servers', '/v2/policy_server', silent_since_ms=None)
    expect(page.locator('.server.silent')).to_have_count(0)
    server.change('learners', '/learner', silent_since_ms=since)
    page.keyboard.press('2')
    row = page.locator('.learner.silent')
    expect(row).to_contain_text('silent 1')
    for old in ('42 %', '0.0312', 'about 13 min'):
        assert old not in row.inner_text()
    server.change('learners', '/learner', silent_since_ms=None)
    expect(page.locator('.learner')).to_contain_text('42 %')


def test_a_quiet_stream_is_grey_with_a_banner_and_comes_back(tab, server):
    page = tab.open()
    server.be_quiet()
    banner = page.locator('#banner')
    expect(banner).to_contain_text('Nothing here is live. The last news is ')
    grey = 'node => getComputedStyle(node).filter'
    assert page.locator('main').evaluate(grey) == 'grayscale(1)'
    # another connection gets the old snapshot, which is no news
    with page.expect_response('**/api/stream'):
        pass
    page.wait_for_timeout(1000)
    expect(banner).to_contain_text('Nothing here is live. The last news is ')
    server.be_quiet(False)
    expect(banner).to_be_hidden()
    assert page.locator('main').evaluate(grey) == 'none'


def test_a_dashboard_that_restarts_is_found_again_with_its_new_state(browser, serve):
    first = serve()
    with opened_tab(browser, first.url) as tab:
        page = tab.open()
        first.close()
        expect(page.locator('#banner')).to_contain_text('Nothing here is live')
        serve({'robots': {node_of('fresh'): robot('fresh')}}, port=first.port)
        expect(page.locator(NAMES)).to_have_text(['fresh'])
        expect(page.locator('#banner')).to_be_hidden()


def test_many_robots_are_updated_in_place(browser, serve):
    server = serve({**fleet(), 'robots': robots(ROBOT_BOUND)})
    with opened_tab(browser, server.url) as tab:
        page = tab.open()
        expect(page.locator(NAMES)).to_have_count(ROBOT_BOUND)
        assert page.evaluate("document.querySelectorAll('*').length") < NODE_BOUND
        page.evaluate(WATCH_ROWS)
        for number in range(50, 60):
            server.change(
                'robots',
                node_of(f'robot_{number}'),
                queue_remaining_s=9.9,
                state='STALLED',
                rank=6,
            )
        server.change('robots', node_of('robot_300'), queue_remaining_s=7.7, rank=0, state='DEAD')
        expect(page.locator(NAMES).first).to_have_text('robot_300')
        expect(page.locator('.cell-buffer', has_text='9.9 s')).to_have_count(10)
        assert page.evaluate('window.added') == []
        assert page.evaluate('window.rows.filter((row) => row.isConnected).length') == ROBOT_BOUND


def test_no_view_is_wider_than_the_screen(browser, server):
    long_name = 'a_robot_with_a_long_name' * 3
    server.change('robots', node_of('robot_1'), name=long_name, reason='x' * 300)
    with opened_tab(browser, server.url) as tab:
        page = tab.open()
        for view in VIEWS:
            page.goto(f'{server.url}/#/{view}')
            expect(page.locator(f'nav a[data-view={view}][aria-current]')).to_be_visible()
            for width in WIDTHS:
                page.set_viewport_size({'width': width, 'height': 740})
                # two frames: charts are drawn to the new width in the second
                page.evaluate(NEXT_FRAMES)
                scrolled = page.evaluate('document.documentElement.scrollWidth')
                assert scrolled <= width, (view, width)
                assert page.evaluate(BEYOND_THE_EDGE) == [], (view, width)


def test_a_robot_is_drawn_again_only_when_it_changed(tab, server):
    page = tab.open()
    first, second = (
        page.locator(f'.fleet.line:has(a:text-is("{name}"))') for name in ('robot_1', 'robot_2')
    )
    expect(second).to_have_count(1)
    second.evaluate("node => { node.dataset.tint = 'mine'; }")
    server.change('robots', node_of('robot_1'), reason='cable check')
    expect(first).to_contain_text('cable check')
    expect(second).to_have_attribute('data-tint', 'mine')
    server.change('robots', node_of('robot_2'), reason='late')
    expect(second).to_contain_text('late')
    expect(second).not_to_have_attribute('data-tint', 'mine')
