# SPDX-License-Identifier: Apache-2.0
"""Whether this machine has a browser for the tests of the page."""

from __future__ import annotations

from playwright.sync_api import sync_playwright
import pytest
from support.dashboard.browser import chromium_path, NO_BROWSER

# the first with light-dark() in a style
OLDEST_VERSION = 123


def test_the_page_is_tested_in_a_browser():
    if not chromium_path():
        pytest.skip(NO_BROWSER)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_path(), args=['--no-sandbox']
        )
        version = browser.version
        browser.close()
    assert int(version.partition('.')[0]) >= OLDEST_VERSION
