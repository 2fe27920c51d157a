# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve stats`: aggregates traces as a table, as JSON or as an HTML page with charts."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = 'aggregate traces and bags: episodes, latencies, fallbacks, dropped requests by slot'
EXAMPLE = 'example: lerobot-serve stats traces/ --html stats.html'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'paths',
        metavar='PATH',
        nargs='+',
        help='trace file of an edge, a router or a server, a folder with traces, or a bag',
    )
    parser.add_argument('--json', action='store_true', help='print a JSON object')
    parser.add_argument('--html', type=Path, metavar='FILE', help='write an HTML page with charts')


def main(options: argparse.Namespace) -> int:
    """Print or write the statistics. Raises ParameterError."""
    import json

    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.tools.bags.message import BagError
    from lerobot_serve.tools.bags.reader import split_bags_and_traces
    from lerobot_serve.tools.bags.trace_view import BagTrace
    from lerobot_serve.tools.cli.progress import show_reading
    from lerobot_serve.tools.output.text import sources_line
    from lerobot_serve.tools.stats.collect import collect_stats
    from lerobot_serve.tools.stats.html_report import html_report
    from lerobot_serve.tools.stats.report import as_json, as_text
    from lerobot_serve.trace.format.schema import TraceError

    try:
        bags, traces = split_bags_and_traces(options.paths)
        sources = [BagTrace(bag) for bag in bags]
        with show_reading(options.paths) as on_bytes_read:
            stats = collect_stats(traces, sources=sources, on_bytes_read=on_bytes_read)
        if options.html:
            options.html.write_text(html_report(stats), errors='replace')
    except (TraceError, BagError, OSError) as error:
        raise ParameterError(str(error)) from error
    if options.json:
        print(json.dumps({'paths': options.paths, **as_json(stats)}, indent=2))
    else:
        print(sources_line(options.paths), as_text(stats), sep='\n')
    return 0
