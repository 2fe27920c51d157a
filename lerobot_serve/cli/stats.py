"""`lerobot-serve stats`: traces summed up, as a table, as JSON or as a page with drawings."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lerobot_serve.bags.as_trace import BagTrace
from lerobot_serve.bags.message import BagError
from lerobot_serve.bags.reader import sorted_out
from lerobot_serve.cli.progress import reading
from lerobot_serve.parameters import ParameterError
from lerobot_serve.trace.schema import TraceError
from lerobot_serve.trace.stats.collect import collect
from lerobot_serve.trace.stats.page import page
from lerobot_serve.trace.stats.report import as_json, table

EXAMPLE = 'example: lerobot-serve stats traces/ --html stats.html'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'paths',
        metavar='PATH',
        nargs='+',
        help='a file of a trace of an edge, a router or a server, a folder with traces, or a bag',
    )
    parser.add_argument('--json', action='store_true', help='print one object')
    parser.add_argument('--html', type=Path, metavar='FILE', help='write a page with drawings')


def main(options: argparse.Namespace) -> int:
    """Raises ParameterError."""
    try:
        bags, traces = sorted_out(options.paths)
        with reading(options.paths):
            stats = collect(traces, [BagTrace(bag).read() for bag in bags])
        if options.html:
            options.html.write_text(page(stats), errors='replace')
    except (TraceError, BagError, OSError) as error:
        raise ParameterError(str(error)) from error
    print(json.dumps(as_json(stats), indent=2) if options.json else table(stats))
    return 0
