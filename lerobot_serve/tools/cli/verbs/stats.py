# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve stats`: aggregates traces as a table, as JSON or as an HTML page with charts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lerobot_serve.tools.cli.arguments import TracePaths
from lerobot_serve.tools.cli.operator_options import Fleet, found_traces, RouterName
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.output.report import Report

HELP = 'aggregate traces and bags: episodes, latencies, fallbacks, dropped requests by slot'
EXAMPLE = 'example: lerobot-serve stats traces/ --html stats.html'


def stats(
    paths: TracePaths = (),
    *,
    html: Annotated[Path | None, Argument('write an HTML page with charts', 'FILE')] = None,
    router: RouterName = '',
    fleet: Fleet,
) -> Report:
    """Return the statistics, and write the page. Raises TraceError, BagError, OSError."""
    from lerobot_serve.tools.bags.reader import split_bags_and_traces
    from lerobot_serve.tools.bags.trace_view import BagTrace
    from lerobot_serve.tools.cli.progress import show_reading
    from lerobot_serve.tools.stats.collect import collect_stats
    from lerobot_serve.tools.stats.report import html_report, stats_report

    paths = found_traces(paths, fleet, router, 'stats')
    bags, traces = split_bags_and_traces(paths)
    sources = [BagTrace(bag) for bag in bags]
    with show_reading(paths) as on_bytes_read:
        found = collect_stats(traces, sources=sources, on_bytes_read=on_bytes_read)
    if html:
        html.write_text(html_report(found), errors='replace')
    return stats_report(found, paths)


add_arguments, main = verb_of(stats)
