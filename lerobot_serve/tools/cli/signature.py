# SPDX-License-Identifier: Apache-2.0
"""
The command line of a verb, made from the signature of its function. The main thread.

A positional parameter is an argument, a keyword-only parameter a flag of its name; its annotation
is the type, with an Argument for the rest: `percent: Annotated[int, Argument('share [%]')]`. A
bool is a flag without a value, a list an argument or flag that is given several times, a Literal a
choice. A parameter whose type is a dataclass is a group of flags, one for each field; so is one
whose annotation lists them, `Annotated[Limits, flags()]`. A verb that returns a Report has --json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
import inspect
import shutil
import sys
from types import SimpleNamespace, UnionType
from typing import Any, get_args, get_origin, get_type_hints, Literal

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.tools.argument import Argument as Argument
from lerobot_serve.tools.argument import EMPTY, Parameter, parameters_of
from lerobot_serve.tools.argument import number as number
from lerobot_serve.tools.output.report import Report
from lerobot_serve.tools.output.text import end_output, flush_output, json_text, without_controls

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
# defaults that the help does not name: the text of the argument says what happens without it
UNNAMED = (None, '', 0, (), EMPTY)

AddArguments = Callable[[argparse.ArgumentParser], None]
Main = Callable[[argparse.Namespace], int]


def verb_of(function: Callable[..., Report | int]) -> tuple[AddArguments, Main]:
    """Return `add_arguments` and `main` of a verb."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_parameters(parser, function)

    def main(options: argparse.Namespace) -> int:
        return call(function, options)

    return add_arguments, main


def steps_of(
    steps: Mapping[str, Callable[..., Report | int]], metavar: str = 'STEP'
) -> tuple[AddArguments, Main]:
    """Return `add_arguments` and `main` of a verb of steps; a docstring begins with their help."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        listed = parser.add_subparsers(dest='step', metavar=metavar, required=True)
        for name, function in steps.items():
            text = (inspect.getdoc(function) or '').partition('. ')[0]
            shown = (text[0].lower() + text[1:]).replace('%', '%%')
            step = listed.add_parser(name, help=shown, description=f'{text}.')
            add_parameters(step, function)
            step.set_defaults(function=function)

    def main(options: argparse.Namespace) -> int:
        return call(options.function, options)

    return add_arguments, main


def add_parameters(parser: argparse.ArgumentParser, function: Callable[..., Any]) -> None:
    """Add the arguments of a function."""
    either: dict[str, argparse._MutuallyExclusiveGroup] = {}
    for parameter in _parameters(function):
        for each in _flags(parameter) or [parameter]:
            _add(parser, each, either)
    given = function.__annotations__
    if given.get('return') == Report.__name__ and 'json' not in given:
        parser.add_argument('--json', action='store_true', help='print a JSON object')


def call(function: Callable[..., Report | int], options: argparse.Namespace) -> int:
    """Run the function with the options; print its report and return the exit status."""
    found = function(**values_of(function, options))
    return print_report(found, options) if isinstance(found, Report) else found


def values_of(function: Callable[..., Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the parameters of a function."""
    return {each.name: _value(each, vars(options)) for each in _parameters(function)}


def print_report(report: Report, options: argparse.Namespace) -> int:
    """Print the report and return its status, also when what was changed cannot be printed."""
    try:
        if options.json:
            print(json_text(report.data, indent=2))
        elif report.parts:
            print(report.as_text(terminal_columns()))
        flush_output()
    except OSError as error:
        if not report.has_changed:
            raise
        # a script would take another status for a verb that changed nothing
        end_output()
        text = f'done; the result cannot be printed: {error.strerror}'
        print(without_controls(f'lerobot-serve {options.verb}: {text}'), file=sys.stderr)
    if report.error:
        print(without_controls(f'lerobot-serve {options.verb}: {report.error}'), file=sys.stderr)
    return report.status or int(bool(report.error))


def terminal_columns() -> int | None:
    """Return the width of the terminal; None when the output is not a terminal."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if is_terminal else None


def _parameters(function: Callable[..., Any]) -> Iterator[Parameter]:
    # that of the result may be imported for a type checker alone
    given = {k: v for k, v in function.__annotations__.items() if k != 'return'}
    hints = get_type_hints(
        SimpleNamespace(__annotations__=given), function.__globals__, include_extras=True
    )
    for name, each in inspect.signature(function).parameters.items():
        yield Parameter(name, hints[name], each.default, each.kind is KEYWORD_ONLY)


def _flags(parameter: Parameter) -> Sequence[Parameter] | None:
    """Return the flags of a group; None for a parameter that is none."""
    if isinstance(parameter.hint, type):
        return parameters_of(parameter.hint)
    listed = get_args(parameter.hint)[1]
    return listed if isinstance(listed, list) else None


def _value(parameter: Parameter, given: Mapping[str, Any]) -> Any:
    flags = _flags(parameter)
    if flags is None:
        return parameter.checked(given[parameter.name])
    group = get_args(parameter.hint)[0] if get_args(parameter.hint) else parameter.hint
    values = {each.name: each.checked(given[each.name]) for each in flags}
    try:
        return group(**values)
    except ValueError as error:
        raise WrongCommandLine(str(error)) from error


def _add(
    parser: argparse.ArgumentParser,
    parameter: Parameter,
    either: dict[str, argparse._MutuallyExclusiveGroup],
) -> None:
    kind, argument = get_args(parameter.hint)[:2]
    default = parameter.default
    details: dict[str, Any] = {'help': _help(argument, default)}
    if argument.metavar:
        details['metavar'] = argument.metavar
    if get_origin(kind) is UnionType:
        kind = next(each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) in (list, Sequence):
        kind = get_args(kind)[0]
        details |= _repeated(parameter.is_flag, argument, default)
    elif not parameter.is_flag and default is not EMPTY:
        details['nargs'] = '?'
    elif argument.nargs == '?':
        # a flag without a value is ''
        details |= {'nargs': '?', 'const': ''}
    if default is not EMPTY and 'default' not in details:
        details['default'] = default
    if argument.action:
        details |= {'action': argument.action, 'nargs': 0}
    elif kind is bool:
        details['action'] = 'store_true'
    elif get_origin(kind) is Literal:
        details['choices'] = get_args(kind)
    elif argument.parse or kind is not str:
        details['type'] = argument.parse or kind
    names = [parameter.name]
    if parameter.is_flag:
        names = list(parameter.flags)
        details |= {'dest': parameter.name, 'required': default is EMPTY}
    place: argparse._ActionsContainer = parser
    if argument.either:
        if argument.either not in either:
            either[argument.either] = parser.add_mutually_exclusive_group()
        place = either[argument.either]
    action = place.add_argument(*names, **details)
    if argument.names:
        # argcomplete reads this attribute
        vars(action)['completer'] = argument.names


def _repeated(is_flag: bool, argument: Argument, default: Any) -> dict[str, Any]:
    if not is_flag:
        return {'nargs': '+' if default is EMPTY else '*'}
    if argument.nargs:
        return {'action': 'extend', 'nargs': argument.nargs, 'default': []}
    return {'action': 'append', 'default': []}


def _help(argument: Argument, default: Any) -> str:
    shown = f'{default:g}' if isinstance(default, float) else str(default)
    is_named = argument.names_default and default not in UNNAMED
    text = f'{argument.help} ({shown})' if is_named else argument.help
    return text.replace('%', '%%')
