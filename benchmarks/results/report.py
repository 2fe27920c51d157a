# SPDX-License-Identifier: Apache-2.0
"""One benchmark's result, as a file. Plain; any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
import json
from pathlib import Path

from lerobot_serve.telemetry.durations import summarize


@dataclass
class Case:
    """One set of conditions. Series are durations in ms; a goal holds or does not."""

    name: str
    parameters: dict[str, object] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    series_ms: dict[str, Sequence[float]] = field(default_factory=dict)
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)
    goals: dict[str, bool] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return the case with its series summed up."""
        return {
            'name': self.name,
            'parameters': self.parameters,
            'counts': self.counts,
            'series_ms': {name: summarize(values) for name, values in self.series_ms.items()},
            'ratios': self.ratios,
            'goals': self.goals,
        }


def as_json(
    name: str,
    about: str,
    machine: dict[str, object],
    parameters: dict[str, object],
    cases: Sequence[Case],
) -> dict[str, object]:
    """Return everything that is known of one run of a benchmark."""
    return {
        'benchmark': name,
        'about': about,
        'machine': machine,
        'parameters': parameters,
        'cases': [case.as_json() for case in cases],
    }


def write(folder: Path, result: dict[str, object]) -> Path:
    """Write FOLDER/NAME.json and return its path."""
    file = folder / f'{result["benchmark"]}.json'
    file.write_text(json.dumps(result, indent=2) + '\n')
    return file
