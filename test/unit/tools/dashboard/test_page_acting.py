# SPDX-License-Identifier: Apache-2.0
"""Acting on the page by keyboard and pointer, in a real browser, against scripted commands."""

from __future__ import annotations

from collections.abc import Callable
import threading

from playwright.sync_api import expect
import pytest
from support.dashboard.browser import opened_tab, wait_for
from support.dashboard.example_fleet import node_of, robot
from support.dashboard.page_server import TOKEN
from support.waiting import wait_until

VIEWS = ('fleet', 'rollout', 'servers', 'incidents', 'robot', 'verdicts')
DO_IT = 'change it'
HELD_S = 30.0


@pytest.fixture
def page(tab):
    """The fleet, with a token."""
    return tab.open(f'#token={TOKEN}')


def wait_for_question(page, text: str = 'Change it') -> None:
    expect(page.locator('#ask-text')).to_have_text(text)


class HeldReplies:
    """Replies that the server keeps back until they are let go."""

    def __init__(self, server, is_held: Callable[[dict], bool] = lambda _: True) -> None:
        self._let_go, self._held, self._is_held = threading.Event(), [], is_held
        self._answer, server.answer = server.answer, self._answer_late
        self.let_go = self._let_go.set

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self._held) == count, f'{count} held replies', HELD_S)

    def _answer_late(self, command: dict) -> tuple[int, dict]:
        reply = self._answer(command)
        if self._is_held(command):
            self._held.append(reply)
            self._let_go.wait(HELD_S)
        return reply


def confirmations(server) -> list[dict]:
    return [each for each in server.commands if each['confirm'] is not None]


def test_the_token_leaves_the_address_and_stays_in_the_tab(tab):
    page = tab.open(f'#/rollout&token={TOKEN}')
    expect(page.locator('nav a[aria-current]')).to_contain_text('Rollout')
    assert TOKEN not in page.url and page.url.endswith('#/rollout')
    assert page.evaluate('Object.values(sessionStorage)') == [TOKEN]
    assert page.evaluate('JSON.stringify(localStorage)') == '{}'
    assert page.evaluate('document.cookie') == ''
    page.evaluate("location.hash = '#token=another'")
    wait_for(page, "Object.values(sessionStorage)[0] === 'another'")
    assert 'another' not in page.url
    assert not [each for each in tab.requests if TOKEN in each or 'another' in each]


def test_without_a_token_a_button_explains_how_to_get_one(tab, server):
    page = tab.open('#/rollout')
    page.get_by_role('button', name='Pause', exact=True).click()
    expect(page.locator('#token')).to_contain_text('that lerobot-serve dashboard prints')
    assert server.commands == []
    page.locator('#token-input').fill(TOKEN)
    page.keyboard.press('Enter')
    wait_for_question(page)
    assert server.commands[0]['verb'] == 'rollout pause'


def test_where_acting_is_off_a_button_says_why(browser, serve):
    server = serve(can_act=False)
    with opened_tab(browser, server.url) as tab:
        page = tab.open(f'#token={TOKEN}')
        page.keyboard.press('a')
        expect(page.locator('#token-text')).to_have_text('Acting is off: no TLS')
        page.keyboard.press('Escape')
        expect(page.locator('#token')).to_be_hidden()
        assert server.commands == []


def test_two_keys_abort_from_anywhere(page, server):
    for index, view in enumerate(VIEWS, 1):
        page.keyboard.press(str(index))
        expect(page.locator(f'nav a[data-view={view}][aria-current]')).to_be_visible()
        page.keyboard.press('A')
        wait_for_question(page)
        expect(page.locator('#ask-confirm')).to_be_focused()
        page.keyboard.press('Enter')
        expect(page.locator('.notice')).to_contain_text('rollout: running -> rolled back')
        expect(page.locator('.notice')).to_contain_text('by kim')
        first, second = server.commands
        assert (first['verb'], first['target']) == ('rollout abort', '/policy_router')
        assert (first['confirm'], second['confirm']) == (None, DO_IT)
        # a candidate that does harm loses its running episodes, too
        assert first['at_once'] and second['at_once']
        server.commands.clear()
        page.get_by_role('button', name='Dismiss').click()


def test_all_robots_are_paused_after_a_question_and_a_resume_needs_more_than_enter(page, server):
    page.get_by_role('button', name='Pause all robots').click()
    wait_for_question(page)
    expect(page.locator('#ask-confirm')).to_be_focused()
    page.keyboard.press('Enter')
    expect(page.locator('.notice')).to_contain_text('Pause all robots: done')
    assert [each['confirm'] for each in server.commands] == [None, DO_IT]
    assert {each['verb'] for each in server.commands} == {'robots pause'}
    server.commands.clear()
    page.get_by_role('button', name='Resume all robots').click()
    wait_for_question(page)
    expect(page.locator('#ask-cancel')).to_be_focused()
    page.keyboard.press('Enter')
    expect(page.locator('#ask')).to_be_hidden()
    assert [(each['verb'], each['confirm']) for each in server.commands] == [
        ('robots resume', None)
    ]


def test_the_keyboard_alone_reaches_everything_with_a_visible_focus(page, server):
    reached: set[str] = set()
    for _ in range(40):
        page.keyboard.press('Tab')
        found = page.evaluate("""() => {
          const node = document.activeElement, style = getComputedStyle(node);
          const name = node.getAttribute('aria-label') || node.textContent.trim();
          return [name, style.outlineStyle, style.outlineWidth];
        }""")
        if found[0].startswith('lerobot_serve') or not found[0]:
            continue
        assert found[1] == 'solid' and found[2] == '2px', found
        reached.add(found[0])
    for name in ('1Fleet', '6Verdicts', 'Abort A', 'Theme: system', 'Keys', 'Filter robots'):
        assert any(each.startswith(name) for each in reached), (name, reached)
    assert {'robot_1', 'Actions of robot_1', 'robot_6', 'Actions of robot_6'} <= reached


def test_the_keyboard_walks_the_views_and_opens_a_robot(page):
    for index, view in enumerate(VIEWS, 1):
        page.keyboard.press(str(index))
        expect(page.locator('nav a[aria-current]')).to_have_attribute('data-view', view)
    page.keyboard.press('?')
    expect(page.locator('#keys')).to_contain_text('abort the rollout')
    page.keyboard.press('Escape')
    expect(page.locator('#keys')).to_be_hidden()
    page.keyboard.press('1')
    # the view follows the address, which changes later
    expect(page.locator('nav a[aria-current]')).to_contain_text('Fleet')
    for _ in range(2):
        page.keyboard.press('ArrowDown')
        wait_for(page, "document.activeElement.closest('.cell-name') !== null")
    page.keyboard.press('Enter')
    expect(page.locator('nav a[aria-current]')).to_contain_text('Robot')
    assert page.url.endswith('%2Fedge_controller')


def test_letters_in_a_field_are_no_commands_and_single_keys_can_be_off(page, server):
    page.keyboard.press('/')
    page.keyboard.type('a2s')
    expect(page.locator('nav a[aria-current]')).to_contain_text('Fleet')
    page.keyboard.press('Escape')
    page.keyboard.press('Escape')
    page.keyboard.press('?')
    page.locator('#keys-on').uncheck()
    page.keyboard.press('Escape')
    page.keyboard.press('a')
    page.keyboard.press('3')
    expect(page.locator('nav a[aria-current]')).to_contain_text('Fleet')
    assert server.commands == []


def test_a_key_right_after_a_dialog_closed_acts(page):
    page.keyboard.press('A')
    wait_for_question(page)
    # no frame is drawn in between, so the field of the closed dialog still has the focus
    focused = page.evaluate("""() => {
        document.getElementById('ask-reason').focus();
        document.getElementById('ask').close();
        const field = document.activeElement;
        field.dispatchEvent(new KeyboardEvent('keydown', {key: '4', bubbles: true}));
        return field.id;
    }""")
    assert focused == 'ask-reason'
    expect(page.locator('nav a[data-view=incidents][aria-current]')).to_be_visible()


def test_what_moves_a_robot_has_its_focus_on_cancel(page, server):
    page.get_by_label('Actions of robot_6').click()
    page.get_by_role('menuitem', name='Reset cage').click()
    wait_for_question(page)
    expect(page.locator('#ask-cancel')).to_be_focused()
    page.keyboard.press('Enter')
    expect(page.locator('#ask')).to_be_hidden()
    assert confirmations(server) == []
    page.get_by_label('Actions of robot_6').click()
    page.get_by_role('menuitem', name='Pause').click()
    expect(page.locator('#ask-confirm')).to_be_focused()
    page.locator('#ask-reason').fill('cable')
    page.keyboard.press('Enter')
    expect(page.locator('.notice')).to_contain_text('Pause the robot: done')
    (sent,) = confirmations(server)
    assert (sent['verb'], sent['target'], sent['reason']) == (
        *('robot pause', node_of('robot_6')),
        'cable',
    )


def test_the_view_of_a_robot_has_its_actions(page, server):
    page.evaluate(f"location.hash = '#/robot/' + encodeURIComponent('{node_of('robot_2')}')")
    page.get_by_role('button', name='Resume', exact=True).click()
    wait_for_question(page)
    assert (server.commands[0]['verb'], server.commands[0]['target']) == (
        *('robot resume',),
        node_of('robot_2'),
    )


def test_split_and_drain_ask_again_when_a_field_changes(page, server):
    reply = {'done': False, 'effect': 'do', 'asks': True}
    server.answer = lambda command: (200, reply | {'text': f'{command["percent"]} %'})
    page.keyboard.press('2')
    page.get_by_role('button', name='Split').click()
    wait_for_question(page, '75 %')
    page.locator('#ask-percent').fill('40')
    wait_for_question(page, '40 %')
    page.keyboard.press('Escape')
    text = '{slot} {at_once}'
    server.answer = lambda command: (200, reply | {'text': text.format(**command)})
    page.get_by_role('button', name='Drain').click()
    wait_for_question(page, 'B False')
    page.locator('#ask-at-once').check()
    wait_for_question(page, 'B True')
    page.get_by_role('combobox', name='Slot').select_option('a')
    wait_for_question(page, 'A True')


def test_a_state_that_changed_meanwhile_is_asked_again(page, server):
    page.keyboard.press('a')
    wait_for_question(page)
    server.text = 'change it in another way'
    page.locator('#ask-confirm').click()
    wait_for_question(page, 'Change it in another way')
    expect(page.locator('#ask-error')).to_have_text('the state changed: read it again')
    page.locator('#ask-confirm').click()
    expect(page.locator('.notice')).to_contain_text('done')


@pytest.mark.parametrize(('effect', 'word'), [('refuse', 'Refused'), ('nothing', 'Nothing to do')])
def test_what_is_refused_cannot_be_confirmed(page, server, effect, word):
    reply = {'done': False, 'effect': effect, 'text': 'a step is not undone', 'asks': False}
    server.answer = lambda _: (200, reply)
    page.keyboard.press('a')
    wait_for_question(page, f'{word}: a step is not undone')
    expect(page.locator('#ask-confirm')).to_be_disabled()
    page.keyboard.press('Enter')
    expect(page.locator('#ask')).to_be_hidden()


def test_an_error_stays_until_it_is_dismissed(page, server):
    page.keyboard.press('a')
    wait_for_question(page)
    error = 'UNKNOWN: the router accepted it and did not confirm it'
    server.answer = lambda _: (504, {'error': error})
    page.keyboard.press('Enter')
    notice = page.locator('.notice[role=alert]')
    expect(notice).to_contain_text(error)
    for key in ('Escape', '3', '1'):
        page.keyboard.press(key)
    server.put('robots', node_of('another'), robot('another'))
    expect(page.locator('.cell-name', has_text='another')).to_be_visible()
    expect(notice).to_contain_text(error)
    notice.get_by_role('button', name='Dismiss').click()
    expect(notice).to_have_count(0)


def test_a_wrong_token_is_forgotten_and_asked_for(tab, server):
    page = tab.open('#token=wrong')
    page.keyboard.press('a')
    expect(page.locator('#token-text')).to_contain_text('The token is wrong')
    assert page.evaluate('sessionStorage.length') == 0
    expect(page.locator('#ask')).to_be_hidden()


def test_a_dashboard_that_does_not_reply_leaves_no_dialog_stuck(page, server):
    held, server.text = HeldReplies(server), 'late'
    page.keyboard.press('a')
    expect(page.locator('#ask-text')).to_contain_text('Asking the dashboard')
    expect(page.locator('#ask-confirm')).to_be_disabled()
    page.keyboard.press('Escape')
    expect(page.locator('#ask')).to_be_hidden()
    # a late reply opens nothing
    held.wait_for(1)
    server.text = DO_IT
    held.let_go()
    page.keyboard.press('a')
    wait_for_question(page)
    page.route('**/api/commands', lambda route: route.abort())
    page.keyboard.press('Enter')
    expect(page.locator('.notice')).to_contain_text('whether it was done is not known')
    expect(page.locator('#ask')).to_be_hidden()


def test_a_verdict_is_two_keys_and_leaves_the_list(page, server):
    page.keyboard.press('6')
    expect(page.locator('.episode')).to_have_count(2)
    page.keyboard.press('ArrowDown')
    expect(page.locator('.episode[aria-pressed=true]')).to_contain_text('robot_1')
    page.keyboard.press('f')
    wait_for_question(page)
    expect(page.locator('#ask-confirm')).to_be_focused()
    page.keyboard.press('Enter')
    expect(page.locator('.episode')).to_have_count(1)
    (sent,) = confirmations(server)
    assert (sent['verb'], sent['target'], sent['outcome']) == ('outcome', 'ep-1', 'failure')
    page.get_by_role('button', name='Success').click()
    wait_for_question(page)
    assert server.commands[-1]['outcome'] == 'success'
    assert 'undo' not in page.locator('main').inner_text().lower()


def test_the_theme_is_remembered_and_nothing_else(page, tab):
    page.keyboard.press('t')
    expect(page.locator('html')).to_have_attribute('data-theme', 'dark')
    page.reload()
    expect(page.locator('html')).to_have_attribute('data-theme', 'dark')
    assert page.evaluate('Object.entries(localStorage)') == [['lerobot_serve.theme', 'dark']]


def test_a_key_that_comes_before_the_sentence_does_nothing(page, server):
    held = HeldReplies(server)
    page.keyboard.press('a')
    expect(page.locator('#ask-text')).to_contain_text('Asking the dashboard')
    page.keyboard.press('Enter')
    expect(page.locator('#ask')).to_be_visible()
    held.let_go()
    wait_for_question(page)
    expect(page.locator('#ask-confirm')).to_be_focused()
    assert confirmations(server) == []


def test_what_is_sent_and_closed_keeps_no_other_command_back(page, server):
    held = HeldReplies(server, lambda command: command['confirm'] is not None)
    page.keyboard.press('a')
    wait_for_question(page)
    page.keyboard.press('Enter')
    expect(page.locator('#ask-confirm')).to_be_disabled()
    # the next command is there before the browser says that the dialog was closed
    page.evaluate("""() => {
        document.getElementById('ask').close();
        document.dispatchEvent(new KeyboardEvent('keydown', {key: 'a'}));
    }""")
    wait_for_question(page)
    page.keyboard.press('Enter')
    expect(page.locator('#ask-confirm')).to_be_disabled()
    held.wait_for(2)
    held.let_go()
    expect(page.locator('.notice')).to_have_count(2)
    assert [each['confirm'] for each in server.commands] == [None, DO_IT, None, DO_IT]


def test_a_start_has_policy_and_plan_and_its_end_is_a_notice(page, server):
    router = '/policy_router'
    server.answer = lambda command: (
        (200, {'effect': 'do', 'text': 'change it'})
        if command['confirm'] is None
        else (202, {'done': False, 'number': 1, 'by': 'kim (dashboard)'})
    )
    page.keyboard.press('2')
    page.get_by_role('button', name='Start', exact=True).click()
    wait_for_question(page)
    assert page.locator('#ask-plan').input_value() == '25,50,100'
    page.locator('#ask-policy').fill('/models/v3')
    page.locator('#ask-plan').fill('10,100')
    wait_for_question(page)
    page.locator('#ask-confirm').click()
    expect(page.locator('.notice.done')).to_contain_text('Start a rollout: begun')
    (sent,) = confirmations(server)
    assert (sent['verb'], sent['policy'], sent['plan']) == (
        'rollout start',
        '/models/v3',
        '10,100',
    )

    step = {'number': 1, 'verb': 'rollout start', 'by': 'kim', 'changes': [], 'state': 'runs'}
    server.change('routers', router, loading=step | {'text': '/b/policy_server: load v3'})
    expect(page.locator('main .loading')).to_contain_text('by kim, runs: /b/policy_server: load')
    failed = step | {'state': 'failed', 'text': 'out of memory'}
    # it names policies, and waits until the blind view is left
    page.keyboard.press('6')
    server.change('routers', router, loading=failed)
    expect(page.locator('.notice')).to_have_count(0)
    page.keyboard.press('2')
    expect(page.locator('.notice:not(.done)')).to_contain_text('failed. Out of memory')
    expect(page.locator('main .loading')).to_contain_text('failed: out of memory')
    # once
    server.change('routers', router, loading=failed, split_percent=74)
    expect(page.locator('.notice:not(.done)')).to_have_count(1)
