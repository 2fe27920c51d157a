# SPDX-License-Identifier: Apache-2.0
"""Translate errors of rcl about command lines and parameter files for users."""

from __future__ import annotations

import ast
import re

PREFIX = 'failed to initialize rcl: '
# source locations in the error text of rcl
SOURCE_LOCATIONS = re.compile(r', at \S+:\d+.*')
PARSE_FAILURE = re.compile(r"Couldn't parse [a-z ]+: '(-\S+) (.*)'\. Error: (.*)")
UNKNOWN_ARGUMENTS = re.compile(r"\['.*'\]")
NAMES = {'__ns': 'namespace', '__node': 'node name', '__name': 'node name'}
NAME_RULES = {
    'namespace': 'use parts like /robot_1 of letters, digits and single _, no digit first',
    'node name': 'use letters, digits and _, no digit first',
}
LEVELS = 'debug, info, warn, error or fatal'


def readable_rcl_error(error_text: str) -> str:
    """Return the error as one line; an unknown error keeps its text without source locations."""
    lines = [line.strip() for line in error_text.splitlines() if line.strip()]
    text = SOURCE_LOCATIONS.sub('', lines[0].removeprefix(PREFIX)) if lines else ''
    if UNKNOWN_ARGUMENTS.fullmatch(text):
        return _unknown(ast.literal_eval(text))
    refused = PARSE_FAILURE.fullmatch(text)
    return _refused(*refused.groups()) if refused else text


def _unknown(words: list[str]) -> str:
    """Name the unknown options; rcl lists their values too."""
    options = [word for word in words if word.startswith('-')] or words
    return f'unknown ROS argument {", ".join(options)}'


def _refused(option: str, given: str, reason: str) -> str:
    name, _, value = given.partition(':=')
    if option in ('-p', '--param'):
        if not value:
            return f'a parameter needs a value: {option} NAME:=VALUE, got {option} {given}'
        if 'xpect' in reason:
            return f'{name!r} is not a parameter name, in {option} {given}'
        return f'{value!r} is not a parameter value, in {option} {given} ({reason})'
    if option in ('-r', '--remap'):
        return _refused_remapping(option, given)
    if option == '--params-file':
        if 'opening' in reason:
            return f'parameter file {given} cannot be opened'
        return f'parameter file {given} cannot be read: {reason}'
    if option == '--log-level':
        return f'{option} must be {LEVELS}, or LOGGER:=LEVEL, got {given}'
    return f'{option} {given}: {reason}'


def _refused_remapping(option: str, given: str) -> str:
    name, _, value = given.partition(':=')
    if not value:
        return f'a remapping needs two names: {option} FROM:=TO, got {option} {given}'
    kind = NAMES.get(name.rpartition(':')[2])
    if kind:
        return f'{value!r} is not a valid {kind}: {NAME_RULES[kind]}'
    return f'{option} {given} contains a name that ROS does not allow'
