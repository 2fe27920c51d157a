"""`lerobot-serve audit`: proves or refutes from traces that robots were driven safely."""

from __future__ import annotations

import argparse
import json

from lerobot_serve.parameters import ParameterError
from lerobot_serve.trace.audit.audit import audit, Outcome, SHOWN
from lerobot_serve.trace.audit.report import as_json, table
from lerobot_serve.trace.schema import TraceError

EXAMPLE = (
    'example: lerobot-serve audit traces/  | ends with 0 when all that was judged holds, 1 for '
    'files that cannot be read, 2 for a wrong command line, 3 for a violation, 4 when nothing '
    'could be judged'
)
STATUS = {
    Outcome.HOLDS: 0,
    Outcome.HOLDS_AS_RECORDED: 0,
    Outcome.VIOLATED: 3,
    Outcome.NOT_JUDGED: 4,
}
SHOWN_LIMIT = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'paths',
        metavar='PATH',
        nargs='+',
        help='a file of a trace of an edge, a router or a server, or a folder with traces',
    )
    parser.add_argument(
        '--show', type=int, default=SHOWN, help=f'violations shown of each check ({SHOWN})'
    )
    parser.add_argument('--json', action='store_true', help='print one object')


def main(options: argparse.Namespace) -> int:
    """Return one of STATUS. Raises ParameterError."""
    if not 0 <= options.show <= SHOWN_LIMIT:
        raise ParameterError(f'--show must be in [0, {SHOWN_LIMIT}], got {options.show}')
    try:
        found = audit(options.paths, show=options.show)
    except (TraceError, OSError) as error:
        raise ParameterError(str(error)) from error
    print(json.dumps(as_json(found), indent=2) if options.json else table(found))
    return STATUS[found.outcome]
