# SPDX-License-Identifier: Apache-2.0
"""The pictures in docs/images: each is on a page, and those of the dashboard are of all views."""

from __future__ import annotations

import importlib.util
import re

import pytest
from support.docs.docs_rig import REPOSITORY

DOCS = REPOSITORY / 'docs'
VIEW = re.compile(r"^    \['(\w+)', '\w+'\],$", re.MULTILINE)
PAGE = REPOSITORY / 'lerobot_serve' / 'tools' / 'dashboard' / 'page' / 'index.html'


def views() -> list[str]:
    """Return the views of the page, as its navigation has them."""
    listed = PAGE.read_text().partition('const VIEWS = [')[2].partition('];')[0]
    return VIEW.findall(listed)


def test_each_picture_is_on_a_page():
    texts = ''.join(page.read_text() for page in [*DOCS.glob('*.md'), REPOSITORY / 'README.md'])
    assert [file.name for file in (DOCS / 'images').iterdir() if file.name not in texts] == []


def test_the_dashboard_has_a_picture_of_each_view_in_both_themes():
    assert len(views()) == 6
    wanted = {f'dashboard_{view}_{theme}.png' for view in views() for theme in ('dark', 'light')}
    assert {file.name for file in (DOCS / 'images').glob('dashboard_*')} == wanted


def test_the_script_that_draws_them_has_all_views_and_its_data():
    pytest.importorskip('PIL', reason='Pillow comes with torch, which is not installed')
    file = REPOSITORY / '.ci' / 'screenshots.py'
    spec = importlib.util.spec_from_file_location('screenshots', file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sorted(module.VIEWS) == sorted(views())
    assert {'robots', 'routers'} <= module.example_sections().keys()
