# SPDX-License-Identifier: Apache-2.0
"""
The flags of a verb that starts a node: one for each parameter, generated from its specification.

`--policy-path`, `--policy_path` and `--policy.path` are one flag. A bool is `--autostart`,
`--no-autostart` or `--autostart false`; a list takes commas, or the flag several times. Pure; any
thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
import re
from typing import Any, NamedTuple

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.parameters import parameter_specs, ParameterError, ParameterSpec
from lerobot_serve.tools.argument import WrongFlag

# of the attributes of argparse.Namespace; no option of a verb begins like this
DEST = 'parameter '
WORDS = {'true': True, 'false': False}
METAVARS = {int: 'N', float: 'X', str: 'TEXT', tuple: 'A,B', bool: 'true|false'}
SEPARATOR = re.compile('[._]')
# title in --help, and how the names of its parameters begin; the first that fits
TOPICS = (
    ('doors', ('http.', 'openpi.', 'lerobot.', 'policy_service.', 'groot.')),
    ('canary', ('canary.',)),
    ('shadow', ('shadow_',)),
    ('link over Zenoh', ('link', 'zenoh_')),
    ('metrics, traces and captures', ('metrics_', 'trace_', 'capture_', 'max_capture_')),
)
OTHER = 'more parameters'


class NodeArgument(NamedTuple):
    """An argument of a verb that is no flag; `values` returns the parameters that it means."""

    name: str
    help: str
    values: Callable[[str], dict[str, str]]


@dataclass(frozen=True, slots=True)
class NodeVerb:
    """
    A verb that starts one executable. `place` is the module and the class of its parameters,
    which is imported when it is needed; `common` are the parameters that --help lists first. The
    namespace is the value of `namespace_of` unless it is given.
    """

    executable: str
    place: str
    common: tuple[str, ...]
    argument: NodeArgument | None = None
    namespace_of: str = ''

    @property
    def parameters(self) -> type[Any]:
        module, _, name = self.place.partition(':')
        found: type[Any] = getattr(import_module(module), name)
        return found


def add_flags(parser: argparse.ArgumentParser, verb: NodeVerb) -> None:
    """Add a flag for each parameter, the common ones first, and those of the process."""
    # an abbreviation would mean another flag once a parameter is added
    parser.allow_abbrev = False
    parser.usage = '%(prog)s [--FLAG VALUE ...]'
    if own := verb.argument:
        parser.usage = f'%(prog)s [{own.name}] [--FLAG VALUE ...]'
        parser.add_argument(DEST, metavar=own.name, nargs='?', help=own.help)
    specs = {spec.name: spec for spec in parameter_specs(verb.parameters)}
    groups = {'common parameters': [specs.pop(name) for name in verb.common]}
    for spec in specs.values():
        groups.setdefault(_topic(spec), []).append(spec)
    titles = ['common parameters', 'process', OTHER, *(title for title, _ in TOPICS)]
    for title in titles:
        if title == 'process':
            _add_process_flags(parser.add_argument_group(title), verb)
        elif title in groups:
            group = parser.add_argument_group(title)
            for spec in groups[title]:
                _add_flag(group, spec)


def given_values(options: argparse.Namespace, verb: NodeVerb) -> dict[str, Any]:
    """Return the checked values of the given flags, by parameter. Raises ParameterError."""
    given = vars(options)
    return {
        spec.name: _checked(spec, given[DEST + spec.name])
        for spec in parameter_specs(verb.parameters)
        if given.get(DEST + spec.name) is not None
    }


def argument_values(
    options: argparse.Namespace, verb: NodeVerb, flags: dict[str, Any]
) -> dict[str, str]:
    """Return the parameters of the argument that is no flag. Raises UserError."""
    given = getattr(options, DEST, None)
    if verb.argument is None or given is None:
        return {}
    values = verb.argument.values(given)
    if doubled := sorted(values.keys() & flags.keys()):
        raise WrongCommandLine(
            f'{verb.argument.name} {given!r} and {flag_of(doubled[0])} name one thing twice; give '
            'one of them'
        )
    return values


def flag_of(name: str) -> str:
    """Return the flag of a parameter as --help shows it."""
    return f'--{SEPARATOR.sub("-", name)}'


def spellings(name: str) -> list[str]:
    """Return the flags of a parameter: any separator first, any one for the rest."""
    first, *rest = SEPARATOR.split(name)
    if not rest:
        return [f'--{first}']
    forms = [f'--{first}{one}{other.join(rest)}' for one in '-_.' for other in '-_.']
    return list(dict.fromkeys([flag_of(name), *forms]))


def value_of(spec: ParameterSpec, text: str) -> Any:
    """Return the parsed value of a parameter, or the text if it cannot be parsed."""
    if spec.kind is tuple:
        return tuple(part.strip() for part in text.split(','))
    if spec.kind is bool:
        return WORDS.get(text, text)
    try:
        return spec.kind(text)
    except ValueError:
        return text


def _checked(spec: ParameterSpec, given: str | list[str]) -> Any:
    value: Any
    if isinstance(given, list):
        value = tuple(item for text in given for item in value_of(spec, text) if item)
    else:
        value = value_of(spec, given)
    try:
        return spec.check(value)
    except ParameterError as error:
        after = '; put other arguments before the flags' if spec.kind is bool else ''
        raise WrongFlag(str(error).replace(spec.name, flag_of(spec.name), 1) + after) from None


def _topic(spec: ParameterSpec) -> str:
    return next((title for title, begin in TOPICS if spec.name.startswith(begin)), OTHER)


def _add_flag(group: argparse._ArgumentGroup, spec: ParameterSpec) -> None:
    """Add the flag with its help, and its other spellings without."""
    shown, *others = spellings(spec.name)
    details: dict[str, Any] = {'dest': DEST + spec.name, 'metavar': METAVARS[spec.kind]}
    if spec.kind is tuple:
        details['action'] = 'append'
    if spec.kind is bool:
        details |= {'nargs': '?', 'const': 'true'}
    group.add_argument(shown, help=_help(spec), **details)
    if others:
        group.add_argument(*others, help=argparse.SUPPRESS, **details)
    if spec.kind is bool:
        negations = [f'--no{each[1:]}' for each in (shown, *others)]
        negations += [f'--no{separator}{each[2:]}' for separator in '_.' for each in others]
        group.add_argument(
            *negations,
            help=argparse.SUPPRESS,
            dest=details['dest'],
            action='store_const',
            const='false',
        )


def _help(spec: ParameterSpec) -> str:
    return ''.join(_help_parts(spec)).replace('%', '%%')


def _help_parts(spec: ParameterSpec) -> Iterator[str]:
    yield spec.text
    if spec.unit:
        yield f' [{spec.unit}]'
    if spec.choices or spec.low is not None or spec.high is not None:
        yield f'; {spec.allowed}'
    if spec.kind is bool:
        yield f'; {flag_of(f"no_{spec.name}")} is false'
    default = ','.join(spec.default) if spec.kind is tuple else str(spec.default)
    if default:
        yield f' ({default.lower() if spec.kind is bool else default})'


def _add_process_flags(group: argparse._ArgumentGroup, verb: NodeVerb) -> None:
    group.add_argument(
        '--params-file',
        type=Path,
        action='append',
        default=[],
        metavar='FILE',
        help='ROS parameter file; flags win over it, and a later file over an earlier one',
    )
    group.add_argument('--name', default='', help=f'name of the node ({verb.executable})')
    group.add_argument('--namespace', default='', help='namespace of the node, such as cell_2')
    group.add_argument(
        '--log-level',
        default='',
        metavar='LEVEL',
        help='minimum severity of the messages shown: debug, info, warn, error or fatal (info)',
    )
