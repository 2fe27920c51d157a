# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve VERB`: finds the verb, parses its arguments, returns its exit status."""

from __future__ import annotations

import argparse
from importlib import import_module
import os
import signal
import sys

from lerobot_serve import __version__
from lerobot_serve.entry_points import missing_package_text, SIGNALS, UserError
from lerobot_serve.parameters import ParameterError
from lerobot_serve.ros.process.private_domain import NoFreeDomain

# verb -> what it does; the module lerobot_serve.tools.cli.verbs.VERB has add_arguments and main
VERBS = {
    'demo': 'run simulated robots, promote a good policy and roll back a bad one',
    'doctor': 'check machine, policy, robot file and ROS graph; print findings with remedies',
    'record': 'record topics into a bag, in the format of ros2 bag',
    'replay': 'send recorded observations to a policy and compare the chunks',
    'plan': 'compute how many policy servers, each with a GPU, a fleet needs',
    'route': 'print the slot in which an episode is placed',
    'audit': 'check traces and bags against the safety invariants',
    'diagnose': 'explain from traces why a robot stalled: a timeline, causes and remedies',
    'stats': 'aggregate traces and bags: episodes, latencies, fallbacks, dropped requests by slot',
    'docs': 'print the parameters of every node, or write the generated pages of docs/',
}
# verbs that run a node in this process, which handles SIGINT and SIGTERM itself
NODES = frozenset({'record'})


def parser(only: str = '') -> argparse.ArgumentParser:
    """
    Return the parser of the whole command, or of `only` one verb: importing the other verbs takes
    a second.
    """
    top = argparse.ArgumentParser(
        prog='lerobot-serve',
        description='Serves learned robot policies to robots that carry no weights.',
        epilog='example: lerobot-serve doctor  | lerobot-serve VERB --help has more',
    )
    top.add_argument('--version', action='version', version=f'%(prog)s {__version__}')
    verbs = top.add_subparsers(dest='verb', metavar='VERB', required=True)
    for verb, text in VERBS.items():
        sub = verbs.add_parser(verb, help=text, description=text[0].upper() + text[1:] + '.')
        if only in ('', verb):
            module = import_module(f'lerobot_serve.tools.cli.verbs.{verb}')
            sub.epilog = module.EXAMPLE
            module.add_arguments(sub)
            sub.set_defaults(main=module.main)
    return top


def verb_of(arguments: list[str]) -> str:
    """Return the verb of a command line, 'none' without one: then no verb is imported."""
    return next((word for word in arguments if not word.startswith('-')), 'none')


def complete() -> None:
    """Complete the command line for a shell and exit; return when no shell asks for it."""
    if '_ARGCOMPLETE' in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser(verb_of(os.environ['COMP_LINE'].split()[1:])))


def main(arguments: list[str] | None = None) -> int:
    """Return 0 on success, 1 when the verb failed, 2 for a wrong command line."""
    if arguments is None and NODES.intersection(sys.argv[1:2]):
        # block before numpy and others start threads, which would consume a signal; not when
        # called as a function, since the caller still needs its signals
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        complete()
        return run(sys.argv[1:] if arguments is None else arguments)
    except ModuleNotFoundError as error:
        print(f'lerobot-serve: {missing_package_text(error)}', file=sys.stderr)
        return 1


def run(arguments: list[str]) -> int:
    """Run the verb. Raises ModuleNotFoundError."""
    options = parser(verb_of(arguments)).parse_args(arguments)
    try:
        return options.main(options)
    except (UserError, ParameterError, NoFreeDomain) as error:
        print(f'lerobot-serve {options.verb}: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of the output ended, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
