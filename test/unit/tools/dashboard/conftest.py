# SPDX-License-Identifier: Apache-2.0
"""One browser for a file of tests, a server with a scripted fleet for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib

import pytest
from support.dashboard.browser import (
    chromium_path,
    IGNORED_WITHOUT,
    opened_tab,
    started_browser,
    Tab,
)
from support.dashboard.page_server import PageServer

collect_ignore_glob = [] if chromium_path() else IGNORED_WITHOUT


@pytest.fixture(scope='module')
def browser():
    with started_browser() as started:
        yield started


@pytest.fixture
def serve() -> Iterator[Callable[..., PageServer]]:
    """Starts servers of the page, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: object, **options: object) -> PageServer:
            server = PageServer(*arguments, **options)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def server(browser, serve) -> PageServer:
    """A server with six robots, each in another state."""
    return serve()


@pytest.fixture
def tab(browser, server) -> Iterator[Tab]:
    with opened_tab(browser, server.url) as opened:
        yield opened
