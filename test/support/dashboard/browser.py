# SPDX-License-Identifier: Apache-2.0
"""A Chromium for the tests of the page, and what each page of it must not do."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from dataclasses import dataclass, field
import functools
import os
import shutil
from typing import Literal

from playwright.sync_api import BrowserContext, expect, Page, sync_playwright

from support.waiting import wait_until

NAMES = ('chromium', 'chromium-browser', 'google-chrome')
FLAGS = (
    *('--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run'),
    *('--disable-background-networking', '--disable-component-update', '--disable-sync'),
    # one process for all pages: each test must leave as many processes as it found
    *('--renderer-process-limit=1', '--disable-site-isolation-trials'),
    '--disable-features=SpareRendererForSitePerProcess,IsolateOrigins,site-per-process',
)
WAIT_MS = 20_000
NO_BROWSER = (
    'test_page_*.py in test/unit/tools/dashboard and test/ros/tools/dashboard did not run: they '
    'need a Chromium (apt install chromium, or name one in CHROMIUM)'
)
# of pytest: what a conftest.py does not collect
IGNORED_WITHOUT = ['test_page_*.py']
WATCH_POLICY = """
window.violations = [];
document.addEventListener('securitypolicyviolation',
  (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


@functools.cache
def chromium_path() -> str:
    """Return the Chromium of CHROMIUM, of the PATH, or of playwright; '' for none."""
    named = os.environ.get('CHROMIUM')
    if named:
        return shutil.which(named) or ''
    if found := next(filter(None, map(shutil.which, NAMES)), ''):
        return found
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if os.path.exists(own) else ''


@contextlib.contextmanager
def started_browser() -> Iterator[BrowserContext]:
    """Give a browser in which each server has its own storage."""
    path = chromium_path()
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        context = browser.new_context()
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(WATCH_POLICY)
        # stays open: the process of a page that ends is a zombie for two seconds
        context.new_page().goto('about:blank')
        yield context
        browser.close()


@dataclass
class Tab:
    """A page of one viewer, and what it did that no page may do."""

    page: Page
    url: str
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Return errors of scripts, requests to elsewhere and violations of the policy."""
        away = [each for each in self.requests if not each.startswith((self.url, 'data:'))]
        violations = self.page.evaluate('window.violations')
        return [*self.errors, *(f'request to {each}' for each in away), *violations]

    def open(self, fragment: str = '') -> Page:
        """Open the page, and wait for its first snapshot."""
        self.page.goto(f'{self.url}/{fragment}')
        self.page.wait_for_selector("html[data-link='live']", state='attached')
        return self.page


def wait_for(page: Page, condition: str) -> None:
    """
    Wait until a condition holds in the page. Page.wait_for_function would evaluate it again
    within the page, which the policy of the page forbids.
    """
    wait_until(lambda: page.evaluate(condition), condition, WAIT_MS / 1000)


@contextlib.contextmanager
def opened_tab(
    browser: BrowserContext,
    url: str,
    *,
    width: int = 1280,
    height: int = 800,
    scheme: Literal['dark', 'light'] = 'dark',
) -> Iterator[Tab]:
    """Give a tab with a session of its own; fail when it did what no page may do."""
    tab = Tab(browser.new_page(), url)
    tab.page.set_viewport_size({'width': width, 'height': height})
    tab.page.emulate_media(color_scheme=scheme)
    tab.page.on('request', lambda request: tab.requests.append(request.url))
    tab.page.on('pageerror', lambda error: tab.errors.append(f'script: {error}'))
    try:
        yield tab
        assert tab.problems() == []
    finally:
        tab.page.close()
