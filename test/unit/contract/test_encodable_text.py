# SPDX-License-Identifier: Apache-2.0
"""Texts of messages are cut by bytes, as their readers count."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from support.paths import REPOSITORY

from lerobot_serve.contract.cdr import CdrReader, CdrWriter, encodable_text

PACKAGE = REPOSITORY / 'lerobot_serve'
# the setters of rclpy would take it
BY_CHARACTERS = re.compile(r'[\w)\]\'"]\[:(TEXT_LIMIT|REASON_LIMIT|FINGERPRINT_LIMIT|1024|2048)\]')
MAKES_MESSAGES = re.compile(
    'from lerobot_serve_interfaces|from lerobot_serve.contract.(data_path.chunk|schema)'
)


@given(st.text(st.characters()) | st.text(st.characters(), min_size=30), st.integers(0, 64))
def test_each_text_is_written_and_read_within_its_limit(text, limit):
    writer = CdrWriter()
    cut = encodable_text(text, limit)
    writer.string(cut, limit)
    assert CdrReader(writer.finish()).string(limit, 'text') == cut


def test_a_short_text_stays_as_it_is():
    assert encodable_text('ü字', 5) == 'ü字'
    assert encodable_text('ü字', 4) == 'ü'


def test_no_message_has_a_text_that_was_cut_by_characters():
    found = [
        f'{path.relative_to(PACKAGE)}: {line.strip()}'
        for path in sorted(PACKAGE.rglob('*.py'))
        if MAKES_MESSAGES.search(text := path.read_text())
        for line in text.splitlines()
        if BY_CHARACTERS.search(line)
    ]
    assert found == []
