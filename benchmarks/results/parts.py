# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of a benchmark that is a package, one after the other. Main thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from benchmarks.results.report import Case


def measure_parts(package: str, parts: Sequence[str], rounds: int, folder: Path) -> list[Case]:
    """
    Return the cases of all parts, each with the name and the parameters of its part. A part is a
    module of the package with ABOUT, PARAMETERS and measure(rounds, folder). Raises UserError.
    """
    cases = []
    for part in parts:
        # imported when its turn comes: a part must not load what another one measures
        module = import_module(f'{package}.{part}')
        cases += [
            replace(
                case,
                name=f'{part}: {case.name}',
                parameters={**module.PARAMETERS, **case.parameters},
            )
            for case in module.measure(rounds, folder)
        ]
    return cases
