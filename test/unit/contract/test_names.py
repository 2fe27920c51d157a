# SPDX-License-Identifier: Apache-2.0
"""Whatever somebody calls a robot, a ROS name and a file name can be made of it."""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st
import pytest
from support.paths import REPOSITORY

from lerobot_serve.contract.cdr import CdrReader, CdrWriter, encodable_text
from lerobot_serve.contract.names import (
    file_name,
    is_topic,
    LENGTH_LIMIT,
    namespace,
    ros_token,
    TOPIC_LIMIT,
)

# lone surrogates and NUL included: a name may come from an argument or a damaged file
anything = st.text(st.characters(), max_size=80)
awkward = st.text(st.sampled_from('ab1_./- \\é\0\n~{}'), max_size=80)
names = anything | awkward

NASTY = [
    '',
    '.',
    '..',
    '../../etc/passwd',
    '/',
    '//',
    '\\',
    '_',
    '__',
    '1',
    '1arm',
    'arm 2',
    'Lab 3/arm #2',
    'ärm',
    '腕',
    '\ud800',
    '\0',
    'arm\n',
    'arm\0',
    'a' * 300,
    '.' * 300,
    '/' * 300,
    '_' * 300,
    'a' * LENGTH_LIMIT,
    'a' * (LENGTH_LIMIT + 1),
    ('a' * 54 + '.') * 2,
    '~',
    '{node}',
    'CON',
    'arm.',
    '-rf',
]
both = pytest.mark.parametrize('make', [ros_token, file_name])
nasty = pytest.mark.parametrize('text', NASTY, ids=lambda text: ascii(text)[:20])


def is_token(text: str) -> bool:
    """Tell what ROS asks of one part of a name, and that it stays readable."""
    letters = re.fullmatch(r'[A-Za-z][A-Za-z0-9_]*', text)
    return bool(letters) and '__' not in text and text[-1] != '_' and len(text) <= LENGTH_LIMIT


def is_file(text: str) -> bool:
    """Tell whether a text is one name in one folder, hidden nowhere and no option of a command."""
    return (
        0 < len(text) <= LENGTH_LIMIT
        and text[0] not in '.-'
        and text.isascii()
        and not set(text) & set('/\\:*?"<>|')
        and text.isprintable()
        and ' ' not in text
    )


@given(names)
@settings(max_examples=300, deadline=None)
def test_a_token_keeps_the_rule_of_ros(text):
    assert is_token(ros_token(text))


@given(names)
@settings(max_examples=300, deadline=None)
def test_a_file_name_is_one_safe_name(text):
    assert is_file(file_name(text))


@nasty
def test_nasty_names_become_good_ones(text):
    assert is_token(ros_token(text))
    assert is_file(file_name(text))


@both
@given(text=names)
@settings(max_examples=150, deadline=None)
def test_a_made_name_is_left_as_it_is(make, text):
    assert make(make(text)) == make(text)


@both
@given(one=names, other=names)
@example(one='a b', other='a_b')
@example(one='a.b', other='a/b')
@example(one='', other='name')
@example(one='', other='file')
@example(one='', other='/')
@example(one='1', other='n_1')
@example(one='a' * 300, other='a' * 301)
@example(one='arm', other='Arm')
@settings(max_examples=150, deadline=None)
def test_two_names_never_become_one(make, one, other):
    # a made name, given as a name, is the one exception: it is left as it is
    if one == other or one == make(other) or other == make(one):
        return
    assert make(one) != make(other)


@both
def test_nasty_names_stay_apart(make):
    assert len({make(text) for text in NASTY}) == len(NASTY)


@pytest.mark.parametrize('text', ['arm', 'arm_2', 'Arm2', 'left_arm_2b', 'a' * LENGTH_LIMIT])
def test_a_good_name_is_not_changed(text):
    assert ros_token(text) == file_name(text) == text


@pytest.mark.parametrize('text', ['arm-2', 'arm.2', 'run_0001.json', '2026-01-31', '1'])
def test_a_good_file_name_may_hold_more_than_a_token(text):
    assert file_name(text) == text
    assert ros_token(text) != text


def test_the_words_of_a_changed_name_can_still_be_read():
    assert ros_token('Lab 3/arm #2').startswith('Lab_3_arm_2_')
    assert file_name('Lab 3/arm #2').startswith('Lab_3_arm_2-')


@pytest.mark.parametrize(
    'name',
    ['/a', '/arm/observation', '/_hidden', '/a1/b_2', '/A', '/' + 'a' * (TOPIC_LIMIT - 1)],
    ids=lambda name: name[:20],
)
def test_a_full_topic_name_is_accepted(name):
    assert is_topic(name)


@pytest.mark.parametrize(
    'name',
    [
        '',
        '/',
        '//',
        'a',
        'arm/observation',
        '~/a',
        '/a/',
        '/a//b',
        '/1a',
        '/a/2',
        '/a-b',
        '/a b',
        '/a.b',
        '/a\n',
        '/a\0',
        '/ärm',
        '/a/{node}',
        '/a/~',
        '/a__b',
        '/../a',
        '/\ud800',
        '/' + 'a' * TOPIC_LIMIT,
    ],
    ids=lambda name: ascii(name)[:20],
)
def test_any_other_name_is_no_topic(name):
    assert not is_topic(name)


@given(names)
@settings(max_examples=150, deadline=None)
def test_a_token_makes_a_topic(text):
    assert is_topic(f'/{ros_token(text)}/action_chunk')


@pytest.mark.parametrize(
    ('given_namespace', 'client_id', 'expected'),
    [
        ('left', 'robot_7', 'left'),
        ('left', None, 'left'),
        ('', 'robot_7', 'robot_7'),
        ('', 'Lab 3/arm #2', ros_token('Lab 3/arm #2')),
        ('', None, ''),
        ('', '', ''),
    ],
)
def test_a_namespace_is_made_of_the_client_where_none_is_given(
    given_namespace, client_id, expected
):
    assert namespace(given_namespace, client_id) == expected
    assert not expected or is_topic(f'/{expected}/edge_controller/state')


# texts of messages are cut by bytes, as their readers count


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
