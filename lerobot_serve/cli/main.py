"""`lerobot-serve VERB`: finds the verb, parses its arguments, returns its exit status."""

from __future__ import annotations

import argparse
from importlib import import_module
import os
import signal
import sys

from lerobot_serve import __version__
from lerobot_serve.parameters import ParameterError
from lerobot_serve.start import remedy, SIGNALS

# verb -> what it does; the module lerobot_serve.cli.VERB has add_arguments and main
VERBS = {
    'demo': 'run a simulated robot against a policy server and sum up what happened',
    'bench': 'measure the data path and write out/bench/*.json',
    'record': 'write what goes over the topics into a bag, as ros2 bag does',
    'replay': 'ask a policy again what a bag recorded, and compare its chunks',
    'route': 'show which slot an episode is placed in',
    'audit': 'prove or refute from traces and bags that robots were driven safely',
    'explain': 'tell from traces why a robot stuttered, with a time line and what to do',
    'stats': 'sum traces and bags up: episodes, latencies, fallbacks and drops of each slot',
    'docs': 'show the parameters of every node, or write docs/parameters.md',
}
# verbs that are a node in this process, which waits for SIGINT and SIGTERM by itself
NODES = frozenset({'record'})


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    top = argparse.ArgumentParser(
        prog='lerobot-serve',
        description='Serves learned robot policies to robots that carry no weights.',
        epilog='example: lerobot-serve demo --seconds 20',
    )
    top.add_argument('--version', action='version', version=f'%(prog)s {__version__}')
    verbs = top.add_subparsers(dest='verb', metavar='VERB', required=True)
    for verb, text in VERBS.items():
        module = import_module(f'lerobot_serve.cli.{verb}')
        sub = verbs.add_parser(
            verb, help=text, description=text[0].upper() + text[1:] + '.', epilog=module.EXAMPLE
        )
        module.add_arguments(sub)
        sub.set_defaults(main=module.main)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Return 0 when all went well, 1 when the verb failed, 2 for a wrong command line."""
    if arguments is None and NODES.intersection(sys.argv[1:2]):
        # before numpy and others start threads, which would take a signal and keep it; a caller of
        # this function goes on after it and needs its signals
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return run(arguments)
    except ModuleNotFoundError as error:
        print(f'lerobot-serve: {remedy(error)}', file=sys.stderr)
        return 1


def run(arguments: list[str] | None) -> int:
    """Run the verb. Raises ModuleNotFoundError."""
    from lerobot_serve.ros.domain import NoDomain
    from lerobot_serve.ros.runtime import UserError

    options = parser().parse_args(arguments)
    try:
        return options.main(options)
    except (UserError, ParameterError, NoDomain) as error:
        print(f'lerobot-serve {options.verb}: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of our output has gone, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
