# SPDX-License-Identifier: Apache-2.0
"""The contrast of every text and state that the page shows, in both themes (WCAG 2.2, AA)."""

from __future__ import annotations

from playwright.sync_api import expect
import pytest
from support.dashboard.browser import opened_tab
from support.dashboard.example_fleet import fleet, node_of, robot, router, server
from support.dashboard.page_server import now_ms, TOKEN

VIEWS = ('fleet', 'rollout', 'servers', 'incidents', 'robot', 'verdicts')
PHASES = ('OFF', 'WAITING', 'RUNNING', 'UNDECIDED', 'PAUSED', 'PROMOTED', 'ROLLED_BACK')
TEXT, LARGE_TEXT, SHAPE = 4.5, 3.0, 3.0
CONTRASTS = """() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((each) => each / 255)
      .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const [r, g, b, alpha = 1] = numbers(getComputedStyle(each).backgroundColor);
      if (alpha === 1) return [r, g, b];
      if (alpha !== 0) throw new Error(`a translucent ground: ${each.className}`);
    }
    throw new Error('no ground');
  };
  const ratio = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text; (text = texts.nextNode());) {
    const node = text.parentElement, style = getComputedStyle(node);
    const words = text.data.trim(), size = parseFloat(style.fontSize);
    if (!words || !node.getClientRects().length || node.closest('script, style, .hear')) continue;
    const kind = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 'large' : 'text';
    found.push([words, kind, ratio(numbers(style.color).slice(0, 3), ground(node))]);
  }
  for (const node of document.querySelectorAll('.state')) {
    if (!node.getClientRects().length) continue;
    const shape = numbers(getComputedStyle(node, '::before').backgroundColor).slice(0, 3);
    found.push([node.textContent, 'shape', ratio(shape, ground(node))]);
  }
  return found;
}"""
NEEDED = {'text': TEXT, 'large': LARGE_TEXT, 'shape': SHAPE}


def every_state() -> dict:
    """Return a fleet in which each state of robots, slots, servers and rollouts occurs."""
    sections = fleet()
    silent = robot('silent', silent_since_ms=now_ms() - 5000, rank=1)
    stopped = robot('stopped', 'DEAD', stopped=True, rank=0)
    sections['robots'] |= {node_of('silent'): silent, node_of('stopped'): stopped}
    sections['routers'] = {f'/router_{phase.lower()}': router(phase) for phase in PHASES}
    states = ('UNCONFIGURED', 'INACTIVE', 'ACTIVE', 'DRAINING', 'FAILED')
    sections['servers'] |= {f'/{state}': server(state, state=state) for state in states}
    slots = router()['slots']
    for state in ('DRAINED', 'PROBING', 'UNAVAILABLE', 'BARRED', 'UNQUALIFIED'):
        slots[state.lower()] = slots['a'] | {'state': state, 'text': 'why'}
    sections['routers']['/router_running']['slots'] = slots
    return sections


def too_weak(page) -> list[str]:
    return [
        f'{text!r} ({kind}): {ratio:.2f}'
        for text, kind, ratio in page.evaluate(CONTRASTS)
        if ratio < NEEDED[kind]
    ]


@pytest.mark.parametrize('scheme', ['dark', 'light'])
def test_every_text_and_state_is_readable(browser, serve, scheme):
    page_server = serve(every_state())
    with opened_tab(browser, page_server.url, scheme=scheme) as tab:
        page = tab.open(f'#token={TOKEN}')
        weak = {}
        targets = [*VIEWS, *(f'rollout/%2Frouter_{phase.lower()}' for phase in PHASES)]
        for target in targets:
            page.goto(f'{page_server.url}/#/{target}')
            view = target.partition('/')[0]
            expect(page.locator(f'nav a[data-view={view}][aria-current]')).to_be_visible()
            weak |= dict.fromkeys(too_weak(page), target)
        page.keyboard.press('a')
        expect(page.locator('#ask-confirm')).to_be_enabled()
        weak |= dict.fromkeys(too_weak(page), 'dialog')
        page_server.answer = lambda _: (504, {'error': 'unknown'})
        page.keyboard.press('Enter')
        expect(page.locator('.notice')).to_be_visible()
        weak |= dict.fromkeys(too_weak(page), 'notice')
        assert weak == {}
