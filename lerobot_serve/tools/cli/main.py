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
    'demo': 'show simulated robots, a new policy that takes over and a bad one that is sent back',
    'doctor': 'find what is wrong with machine, policy and robot, and what to do about it',
    'record': 'write what goes over the topics into a bag, as ros2 bag does',
    'replay': 'ask a policy again what a bag recorded, and compare its chunks',
    'plan': 'say how many policy servers, each with a GPU, a fleet of robots needs',
    'route': 'show which slot an episode is placed in',
    'audit': 'prove or refute from traces and bags that robots were driven safely',
    'diagnose': 'explain from traces why a robot stalled: a timeline, causes and remedies',
    'stats': 'sum traces and bags up: episodes, latencies, fallbacks and drops of each slot',
    'docs': 'show the parameters of every node, or write the generated pages of docs/',
}
# verbs that are a node in this process, which waits for SIGINT and SIGTERM by itself
NODES = frozenset({'record'})


def parser(only: str = '') -> argparse.ArgumentParser:
    """
    Return the parser of the whole command, or of `only` one verb: what the others import would
    cost a second.
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
    """Return the verb of a command line, or a word that is none: it needs no verb's options."""
    return next((word for word in arguments if not word.startswith('-')), 'none')


def complete() -> None:
    """Answer a shell that asks what may come next, and end; return when none asks."""
    if '_ARGCOMPLETE' in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser(verb_of(os.environ['COMP_LINE'].split()[1:])))


def main(arguments: list[str] | None = None) -> int:
    """Return 0 when all went well, 1 when the verb failed, 2 for a wrong command line."""
    if arguments is None and NODES.intersection(sys.argv[1:2]):
        # before numpy and others start threads, which would take a signal and keep it; a caller of
        # this function goes on after it and needs its signals
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
        # the reader of our output has gone, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
