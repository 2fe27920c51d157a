# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve VERB`: finds the verb, parses its arguments, returns its exit status."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
import errno
import os
import re
import signal
import sys
from typing import NoReturn

from lerobot_serve import __version__
from lerobot_serve.entry_points import SIGNALS
from lerobot_serve.errors import UserError
from lerobot_serve.requirements import missing_package_text
from lerobot_serve.tools.cli.installed_verbs import (
    BrokenVerb,
    installed_verbs,
    listed_by_topic,
    VerbEntry,
)
from lerobot_serve.tools.output.text import (
    end_output,
    flush_output,
    json_text,
    prepare_output,
    without_controls,
)

NO_VERB = 'none'


class Parser(argparse.ArgumentParser):
    """
    A parser whose errors say how to give a value that begins with a dash, and which choice a wrong
    one is nearest to.
    """

    def _check_value(self, action: argparse.Action, value: object) -> None:
        # argparse has no public hook for the text of this error
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = nearest(str(value), map(str, action.choices or ()))
            if not near:
                raise
            text = f'invalid choice: {value!r}; did you mean {near}?'
            raise argparse.ArgumentError(action, text) from error

    def error(self, message: str) -> NoReturn:
        if 'expected one argument' in message or 'expected at least one argument' in message:
            flag = message.removeprefix('argument ').partition(':')[0].partition('/')[0]
            message += f'; a value that begins with - is given as {flag}=-VALUE'
        super().error(message)


def nearest(given: str, known: Iterable[str]) -> str:
    """Return the one that may be meant, whatever its case and separators; '' for none."""
    from lerobot_serve.parameters import closest_name

    plain = {_plain(each): each for each in known}
    near = closest_name(_plain(given), plain)
    return plain[near] if near else ''


def _plain(text: str) -> str:
    return re.sub('[._]', '-', text.lower())


def parser(verbs: Mapping[str, VerbEntry], only: str = '') -> argparse.ArgumentParser:
    """
    Return the parser of the whole command, or of `only` one verb, which need not exist: the
    arguments of the others take a second to import. A broken verb is listed with the reason.
    """
    top = Parser(
        prog='lerobot-serve',
        description='Serves learned robot policies to robots that carry no weights.',
        # the list of verbs is wrapped already
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='example: lerobot-serve doctor  | lerobot-serve VERB --help shows the options',
    )
    top.add_argument('--version', action='version', version=f'%(prog)s {__version__}')
    listed = top.add_subparsers(dest='verb', metavar='VERB', required=True)
    texts: dict[str, str] = {}
    for name, entry in verbs.items():
        if only not in ('', NO_VERB) and name != only:
            listed.add_parser(name)
            continue
        try:
            verb = entry.load()
        except BrokenVerb as error:
            texts[name] = str(error)
            listed.add_parser(name)
            continue
        texts[name], text = verb.HELP, _escaped(verb.HELP)
        sub = listed.add_parser(name, description=text[0].upper() + text[1:] + '.')
        if only in ('', name):
            sub.epilog = verb.EXAMPLE
            verb.add_arguments(sub)
            sub.set_defaults(main=verb.main, parser=sub)
    for topic, lines in listed_by_topic(texts):
        top.add_argument_group(topic, lines)
    return top


def verb_of(arguments: list[str]) -> str:
    """Return the verb of a command line, NO_VERB without one, so that no verb adds arguments."""
    return next((word for word in arguments if not word.startswith('-')), NO_VERB)


def complete(verbs: Mapping[str, VerbEntry]) -> None:
    """
    Complete the command line for a shell and exit; return if this is not a completion request.
    """
    if '_ARGCOMPLETE' in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser(verbs, verb_of(os.environ['COMP_LINE'].split()[1:])))


def main(arguments: list[str] | None = None) -> int:
    """Return 0 on success, 1 when the verb failed, 2 for a wrong command line."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        verbs = installed_verbs()
        complete(verbs)
        return run(verbs, given, is_process=arguments is None)
    except ModuleNotFoundError as error:
        print(f'lerobot-serve: {missing_package_text(error)}', file=sys.stderr)
    except BrokenVerb as error:
        print(f'lerobot-serve: {error}', file=sys.stderr)
    return 1


def run(verbs: Mapping[str, VerbEntry], arguments: list[str], *, is_process: bool) -> int:
    """Run the verb. Raises ModuleNotFoundError, BrokenVerb."""
    name = verb_of(arguments[:1])
    if name in verbs and getattr(verbs[name].load(), 'HOLDS_SIGNALS', False) and is_process:
        # block before libraries start threads, which would consume a signal; not if called as a
        # function, because the caller needs its signals
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    top = parser(verbs, name)
    options, unknown = top.parse_known_args(arguments)
    if unknown:
        refuse_unknown(getattr(options, 'parser', top), unknown)
    prepare_output()
    try:
        status: int = options.main(options)
        # Python reports an error of its own flush at the end with a status of its own
        flush_output()
        return status
    except _user_errors() as error:
        return refused(options, error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of the output has ended, for example `| head`
        end_output()
        return 1
    except OSError as error:
        # one with a name is of a file that the user has given
        if error.errno != errno.ENOSPC and error.filename is None:
            raise
        if error.errno == errno.ENOSPC:
            end_output()
        return refused(options, error)


def refused(options: argparse.Namespace, error: Exception) -> int:
    """Print an error that the user can correct, also as JSON; return the exit status."""
    print(without_controls(f'lerobot-serve {options.verb}: {error}'), file=sys.stderr)
    status: int = getattr(error, 'exit_status', 1)
    if getattr(options, 'json', False):
        try:
            print(json_text({'error': str(error), 'exit_status': status}, indent=2))
            flush_output()
        except OSError:
            # the sentence stands on standard error
            end_output()
    return status


def refuse_unknown(sub: argparse.ArgumentParser, words: list[str]) -> NoReturn:
    """End with status 2; name the flag of the verb that is closest to the first unknown one."""
    flag = next((word for word in words if word.startswith('-')), '').partition('=')[0]
    if not flag:
        sub.error(f'unrecognized arguments: {" ".join(words)}')
    actions = [each for each in sub._actions if each.help != argparse.SUPPRESS]
    near = nearest(flag, (option for each in actions for option in each.option_strings))
    hint = f'did you mean {near}?' if near else 'there is no flag like it;'
    print(
        f'{sub.prog}: error: {flag} is not a flag of this verb; {hint} `{sub.prog} --help` lists '
        'all flags',
        file=sys.stderr,
    )
    raise SystemExit(2)


def _user_errors() -> tuple[type[Exception], ...]:
    """Return the error types that users can correct; imported only after an error."""
    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.ros.process.private_domain import NoFreeDomain
    from lerobot_serve.tools.operate.outcome import ResultUnknown

    return UserError, ParameterError, NoFreeDomain, ResultUnknown


def _escaped(text: str) -> str:
    """Return a help text escaped for argparse."""
    return text.replace('%', '%%')
