# SPDX-License-Identifier: Apache-2.0
"""What rcl says of a wrong command line, made readable."""

from __future__ import annotations

import pytest
import rclpy

from lerobot_serve.ros.process.rcl_errors import NAME_RULES, readable_rcl_error

NAMESPACE = f'is not a valid namespace: {NAME_RULES["namespace"]}'
NODE = f'is not a valid node name: {NAME_RULES["node name"]}'
MISTAKES = [
    (['-p', 'seed'], 'a parameter needs a value: -p NAME:=VALUE, got -p seed'),
    (['-p', 'seed:='], 'a parameter needs a value: -p NAME:=VALUE, got -p seed:='),
    (['-p', 'a-b:=3'], "'a-b' is not a parameter name, in -p a-b:=3"),
    (['-p', '1a:=3'], "'1a' is not a parameter name, in -p 1a:=3"),
    (['-p', 'seed:=[a'], "'[a' is not a parameter value, in -p seed:=[a (Error parsing an ev"),
    (['--nosuch'], 'unknown ROS argument --nosuch'),
    (['--nosuch', '--other', 'x'], 'unknown ROS argument --nosuch, --other'),
    (['-r', '__ns:=/a b'], f"'/a b' {NAMESPACE}"),
    (['-r', '__ns:=no//name'], f"'no//name' {NAMESPACE}"),
    (['-r', 'sim_robot:__node:=a-b'], f"'a-b' {NODE}"),
    (['-r', 'nothing'], 'a remapping needs two names: -r FROM:=TO, got -r nothing'),
    (['-r', 'a b:=c'], '-r a b:=c contains a name that ROS does not allow'),
    (['--params-file', '/no, at /all.yaml'], 'parameter file /no, at /all.yaml cannot be op'),
    (['--log-level', 'loud'], '--log-level must be debug, info, warn, error or fatal, or LOGGER:'),
    (['-p'], "Couldn't parse trailing -p flag. No parameter override rule found."),
]


def refusal(words: list[str]) -> str:
    context = rclpy.Context()
    with pytest.raises(Exception) as refused:
        rclpy.init(args=['--ros-args', *words], context=context)
    return str(refused.value)


@pytest.mark.parametrize(('words', 'said'), MISTAKES, ids=lambda value: str(value))
def test_a_mistake_is_one_line_in_the_words_of_the_user(words, said):
    text = readable_rcl_error(refusal(words))
    assert text.startswith(said)
    assert len(text.splitlines()) == 1
    assert '.c:' not in text


def test_a_broken_parameter_file_is_named_with_its_line(tmp_path):
    file = tmp_path / 'broken.yaml'
    file.write_text('sim_robot:\n  ros__parameters:\n    rate_hz: {a: {b: }}\n')
    said = readable_rcl_error(refusal(['--params-file', str(file)]))
    assert said == f'parameter file {file} cannot be read: No value at line 3'


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('', ''),
        ('\n \n', ''),
        ('failed to initialize rcl: bad, at ./src/rcl/init.c:286, at ./src/rcl/b.c:1', 'bad'),
        ('something else\nand more', 'something else'),
        ('[not a list', '[not a list'),
    ],
)
def test_any_other_text_is_passed_on_without_places(text, said):
    assert readable_rcl_error(text) == said
