# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve stats`: aggregates traces as a table, as JSON or as a page with charts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.bags.message import BagError
from lerobot_serve.tools.bags.reader import split_bags_and_traces
from lerobot_serve.tools.bags.trace_view import BagTrace
from lerobot_serve.tools.cli.progress import show_reading
from lerobot_serve.tools.stats.collect import collect_stats
from lerobot_serve.tools.stats.html_report import html_report
from lerobot_serve.tools.stats.report import as_json, as_text
from lerobot_serve.trace.format.schema import TraceError

EXAMPLE = 'example: lerobot-serve stats traces/ --html stats.html'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'paths',
        metavar='PATH',
        nargs='+',
        help='trace file of an edge, a router or a server, a folder with traces, or a bag',
    )
    parser.add_argument('--json', action='store_true', help='print one object')
    parser.add_argument('--html', type=Path, metavar='FILE', help='write a page with charts')


def main(options: argparse.Namespace) -> int:
    """Raises ParameterError."""
    try:
        bags, traces = split_bags_and_traces(options.paths)
        with show_reading(options.paths):
            stats = collect_stats(traces, [BagTrace(bag).read() for bag in bags])
        if options.html:
            options.html.write_text(html_report(stats), errors='replace')
    except (TraceError, BagError, OSError) as error:
        raise ParameterError(str(error)) from error
    print(json.dumps(as_json(stats), indent=2) if options.json else as_text(stats))
    return 0
