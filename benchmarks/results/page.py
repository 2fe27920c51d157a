# SPDX-License-Identifier: Apache-2.0
"""
Results of benchmarks as a page in Markdown with plots. Pure functions; any thread.

A result is what `report.as_json` made, as it lies in FOLDER/NAME.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import textwrap
from typing import Any

from benchmarks.results.chart import draw_chart

Result = Mapping[str, Any]
HEAD = """# Benchmarks

Generated from `out/bench/*.json` by `make bench BENCH="--page docs"`; do not edit. `make bench`
runs all benchmarks, `make bench BENCH=NAME` one. [performance.md](performance.md) draws the
conclusions.

Figures of shared machines differ from run to run: compare the ratio of two things that were
measured alternately, in the same run. All times are in ms. A goal that was not met is **missed**.
"""
COLUMNS = ('n', 'min', 'p50', 'p95', 'p99')
LINE_LENGTH = 100


def page(results: Sequence[Result], plots: str) -> str:
    """Return the whole page; the plot of each result lies at `plots`/NAME.svg."""
    parts = [HEAD, f'{overview(results)}\n']
    parts += [section(result, plots) for result in results]
    return wrapped('\n'.join(parts))


def wrapped(text: str) -> str:
    """Return the text with lines of bounded length, except those of tables."""
    lines = []
    for line in text.split('\n'):
        indent = '  ' if line.startswith('* ') else ''
        is_whole = line.startswith(('|', '!')) or not line
        lines += (
            [line]
            if is_whole
            else textwrap.wrap(
                line,
                LINE_LENGTH,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    return '\n'.join(lines)


def overview(results: Iterable[Result]) -> str:
    """Return a list of all benchmarks with their goals."""
    rows = []
    for result in results:
        name, goals = result['benchmark'], of_all_goals(result)
        held = sum(goals.values())
        said = f'{held} of {len(goals)}' if goals else 'none'
        rows.append(f'* [{name}](#{name}): {result["about"]}. Goals held: {said}')
    return '\n'.join(rows)


def section(result: Result, plots: str = '') -> str:
    """Return all that is known of one benchmark, with its plot where there are plots."""
    name = result['benchmark']
    parts = [f'## {name}', sentence(result['about']), conditions(result)]
    if plots and any(case['series_ms'] for case in result['cases']):
        parts.append(f'![{name}]({plots}/{name}.svg)')
    parts += [case_text(case) for case in result['cases']]
    return '\n\n'.join(parts) + '\n'


def conditions(result: Result) -> str:
    """Return what it was measured on, and how."""
    here = result['machine']
    machine = (
        f'{here["cpu"]}, {here["cores"]} cores, load {here["load_average"][0]} at the start; '
        f'{here["ros_distro"]}, {here["middleware"]}, Python {here["python"]}; '
        f'{here["started"][:10]}, commit {here["git_commit"][:7]}.'
    )
    return f'{machine} {sentence(pairs(result["parameters"]))}'


def case_text(case: Mapping[str, Any]) -> str:
    """Return one case: its figures, ratios, counts and goals."""
    parts = [f'**{case["name"]}**']
    said = pairs({**case['parameters'], **case['counts']})
    if said:
        parts.append(said)
    rows = [
        [name, *(number(figures.get(column)) for column in COLUMNS)]
        for name, figures in case['series_ms'].items()
    ]
    if rows:
        parts.append(table(['ms', *COLUMNS], rows))
    lines = [f'* {name}: {pairs(figures) or "not measured"}' for name, figures in ratios(case)]
    lines += [f'* {"holds" if held else "**missed**"}: {goal}' for goal, held in goals(case)]
    return '\n\n'.join([*parts, '\n'.join(lines)] if lines else parts)


def ratios(case: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    return list(case['ratios'].items())


def goals(case: Mapping[str, Any]) -> list[tuple[str, bool]]:
    return list(case['goals'].items())


def of_all_goals(result: Result) -> dict[str, bool]:
    """Return the goals of all cases, each under a name of its own."""
    return {
        f'{case["name"]}: {goal}': held for case in result['cases'] for goal, held in goals(case)
    }


def plots(results: Iterable[Result]) -> dict[str, str]:
    """Return the picture of each benchmark that has one."""
    drawn = {result['benchmark']: draw_chart(result['cases']) for result in results}
    return {name: text for name, text in drawn.items() if text}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ['---'] * len(head), *rows]
    return '\n'.join('| ' + ' | '.join(cell(each) for each in line) + ' |' for line in lines)


def cell(text: str) -> str:
    return ' '.join(text.split()).replace('|', '\\|')


def pairs(values: Mapping[str, object]) -> str:
    return ', '.join(f'{name.replace("_", " ")} {plain(value)}' for name, value in values.items())


def plain(value: object) -> str:
    """Return a value as people read it."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (list, tuple)):
        return ' and '.join(map(plain, value))
    return str(value)


def number(value: float | None) -> str:
    """Return a figure with no more digits than a measurement has."""
    if value is None:
        return ''
    if value == int(value):
        return str(int(value))
    return f'{value:.0f}' if abs(value) >= 1000 else f'{value:.3g}'


def sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith('.') else f'{text}.'
