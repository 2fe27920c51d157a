# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks`: measures, writes a JSON file for each benchmark, prints a table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
import json
import os
from pathlib import Path
import signal
import sys
from typing import Any

import rclpy

from benchmarks.harness import machine
from benchmarks.results import page, report
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError
from lerobot_serve.ros.process.private_domain import reserve_domain

EXAMPLE = 'example: make bench BENCH="round_trip --rounds 200"'
# the module benchmarks.NAME has ABOUT, PARAMETERS and measure(rounds, folder); a package has ABOUT
# and PARTS, which are such modules
NAMES = (
    'round_trip',
    'many_robots',
    'slow_link',
    'failover',
    'start_up',
    'operating',
    'router_overhead',
    'router_cpu',
    'quotas',
    'fleet_growth',
    'site_faults',
    'trace_cost',
    'batching',
    'loop',
    'loop_kills',
    'local_kills',
    'control_loop',
    'dashboard',
    'recording',
    'gateways',
    'pickles',
    'canary',
    'hunt',
)
OUT = Path('out/bench')
REPOSITORY = Path(__file__).resolve().parents[1]
PLOTS = 'benchmarks'
ROUNDS_LIMIT = 100_000
COUNT_LIMIT = 10**9
# option -> the benchmarks that take it, what it is, and whether it is a count
SPECIFIC = {
    'steps': (('hunt',), 'steps of edge and router, each', True),
    'seed': (('hunt', 'loop_kills', 'local_kills', 'site_faults'), 'first seed (1)', False),
    'mutations': (('pickles',), 'mutated pickles to read (10000000)', True),
    'kills': (
        ('loop_kills', 'local_kills', 'site_faults'),
        'processes to kill, one after the other (12, 10000), or faults (200)',
        True,
    ),
    'pauses-ms': (('round_trip',), 'how long to rest before each trip (0,10,30)', False),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'names', metavar='NAME', nargs='*', help=f'one of {", ".join(NAMES)}; default: all'
    )
    parser.add_argument('--rounds', type=int, default=200, help='repetitions of each case (200)')
    for name, (takers, what, _) in SPECIFIC.items():
        parse = str if name == 'pauses-ms' else int
        parser.add_argument(f'--{name}', type=parse, help=f'{", ".join(takers)} only: {what}')
    parser.add_argument('--out', type=Path, default=OUT, help=f'folder for results ({OUT})')
    parser.add_argument(
        '--page',
        metavar='FOLDER',
        type=Path,
        help='measure nothing; write FOLDER/benchmarks.md and its plots from the results',
    )


def main(arguments: list[str] | None = None) -> int:
    """Return the exit status: 0 when all was measured, 1 for a mistake of the user."""
    parser = argparse.ArgumentParser(prog='python -m benchmarks', epilog=EXAMPLE)
    add_arguments(parser)
    try:
        return measure(parser.parse_args(arguments))
    except UserError as error:
        print(f'benchmarks: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def find_in_children() -> None:
    """Let child processes find this folder, wherever they run."""
    known = [str(REPOSITORY), os.environ.get('PYTHONPATH', '')]
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, known))


def measure(options: argparse.Namespace) -> int:
    """Measure what the options name. Raises UserError."""
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        raise UserError(f'there is no benchmark {unknown[0]!r}; there are {", ".join(NAMES)}')
    if not 4 <= options.rounds <= ROUNDS_LIMIT:
        raise UserError(f'--rounds must be in [4, {ROUNDS_LIMIT}], got {options.rounds}')
    specific = specific_options(options)
    if options.page:
        write_page(options.out, options.page)
        return 0
    # programs of a benchmark run in folders of their own
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    find_in_children()
    # nobody's robot is to answer
    reserve_domain()
    # ends like Ctrl-C, so that the processes that were started are ended too
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name in options.names or NAMES:
        run(name, options.rounds, options.out, **specific)
    return 0


def specific_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that only some benchmarks take. Raises UserError."""
    found = {}
    for option, (takers, _, is_count) in SPECIFIC.items():
        name = option.replace('-', '_')
        if (value := getattr(options, name)) is None:
            continue
        if len(options.names) != 1 or options.names[0] not in takers:
            raise UserError(
                f'--{option} is for {" or ".join(takers)}: '
                f'make bench BENCH="{takers[0]} --{option} {value}"'
            )
        if is_count and not 1 <= value <= COUNT_LIMIT:
            raise UserError(f'--{option} must be in [1, {COUNT_LIMIT}], got {value}')
        found[name] = value
    return found


def write_page(results: Path, folder: Path) -> None:
    """Write the page of all results that there are. Raises UserError."""
    found = [file for name in NAMES if (file := results / f'{name}.json').exists()]
    if not found:
        raise UserError(f'{results} holds no results; make bench measures')
    try:
        read = [json.loads(file.read_text()) for file in found]
    except ValueError as error:
        raise UserError(f'{results} holds a result that cannot be read: {error}') from error
    plots = page.plots(read)
    (folder / PLOTS).mkdir(parents=True, exist_ok=True)
    (folder / 'benchmarks.md').write_text(page.page(read, PLOTS))
    for name, plot in plots.items():
        (folder / PLOTS / f'{name}.svg').write_text(plot)
    print(f'wrote {folder}/benchmarks.md and {len(plots)} plots in {folder / PLOTS}')


def run(name: str, rounds: int, folder: Path, **more: Any) -> None:
    """Run one benchmark; `more` is what it alone takes. Raises UserError."""
    module = import_module(f'benchmarks.{name}')
    here = machine.facts(rclpy.get_rmw_implementation_identifier())
    print(f'{name}: {module.ABOUT}', flush=True)
    print(f'  {here["cpu"]}, {here["cores"]} cores, load {here["load_average"][0]}\n', flush=True)
    if hasattr(module, 'PARTS'):
        cases, parameters = measure_parts(module.__name__, module.PARTS, rounds, folder), {}
    else:
        cases, parameters = module.measure(rounds, folder, **more), module.PARAMETERS
    result = report.as_json(name, module.ABOUT, here, {'rounds': rounds, **parameters}, cases)
    file = report.write(folder, result)
    print(f'{page.wrapped(page.section(result))}\nwrote {file}\n', flush=True)


def measure_parts(package: str, parts: Sequence[str], rounds: int, folder: Path) -> list[Case]:
    """
    Return the cases of all parts, each with the name and the parameters of its part. A part is a
    module of the package with ABOUT, PARAMETERS and measure(rounds, folder). Raises UserError.
    """
    cases = []
    for part in parts:
        # imported when its turn comes: a part must not load what another one measures
        module = import_module(f'{package}.{part}')
        for case in module.measure(rounds, folder):
            parameters = {**module.PARAMETERS, **case.parameters}
            cases.append(replace(case, name=f'{part}: {case.name}', parameters=parameters))
    return cases


if __name__ == '__main__':
    raise SystemExit(main())
