# SPDX-License-Identifier: Apache-2.0
"""What the source of the page must not have; what it does is tested in a browser."""

from __future__ import annotations

import re

import pytest

from lerobot_serve.tools.dashboard.http.guards import FOLDER, INDEX

SOURCE = (FOLDER / INDEX).read_text()
LINE_LENGTH = 99


@pytest.mark.parametrize(
    'name',
    ['innerHTML', 'outerHTML', 'insertAdjacentHTML', 'document.write', 'eval(', 'Function('],
)
def test_no_text_becomes_markup_or_code(name):
    assert name not in SOURCE


def test_nothing_is_loaded_from_elsewhere():
    assert re.findall(r'(?:https?:)?//[\w.]+\.\w+', SOURCE) == []
    assert re.findall(r'(?:src|href)="([^"]*)"', SOURCE) == [
        *('data:,', 'uPlot.min.css', 'uPlot.iife.min.js')
    ]


def test_the_content_security_policy_allows_all_of_its_style_and_script():
    assert len(re.findall(r'<style>', SOURCE)) == 1
    assert len(re.findall(r'<script>', SOURCE)) == 1
    assert re.findall(r'\s(?:style|on\w+)="', SOURCE) == []


def test_lines_are_as_short_as_those_of_the_code():
    assert [line for line in SOURCE.splitlines() if len(line) > LINE_LENGTH] == []
