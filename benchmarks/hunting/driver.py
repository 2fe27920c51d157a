# SPDX-License-Identifier: Apache-2.0
"""
A seeded random driver for the models of the hunt, and what it found.

A run is one robot or one fleet with the choices that its seed draws, driven for so many steps.
What happens between two steps is a script, drawn beforehand: so a violation can be replayed, and
its script made shorter as long as the same rule is still broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
import time
from typing import NamedTuple, Protocol

# one step in so many has something else happen before it
STEPS_PER_EVENT = 6
SHRINK_RUNS = 300


class Violation(AssertionError):
    """An invariant that does not hold; `rule` is its name, the text says what was seen."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f'{rule}: {text}')
        self.rule = rule


class Model(Protocol):
    """What is driven."""

    choices: dict[str, object]

    def step(self) -> None: ...

    def close(self) -> None: ...


class FuzzEvent(NamedTuple):
    """Something that may happen: how likely, with which of these arguments, and how."""

    weight: int
    act: Callable[..., object]
    arguments: tuple[Sequence[object], ...] = ()


class ScriptLine(NamedTuple):
    """One line of a script: before which step, what, and with which arguments."""

    step: int
    rule: str
    arguments: tuple[object, ...] = ()

    def __str__(self) -> str:
        return f'{self.step}: {self.rule} {" ".join(map(str, self.arguments))}'.rstrip()


FuzzEvents = dict[str, FuzzEvent]
Script = tuple[ScriptLine, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation, the seed of its run, and the script that leads to it."""

    seed: int
    step: int
    rule: str
    text: str
    choices: dict[str, object]
    script: Script


@dataclass(slots=True)
class CampaignResult:
    """What a hunt did."""

    steps: int = 0
    runs: int = 0
    seconds: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def draw_script(seed: int, rules: FuzzEvents, steps: int) -> Script:
    """Return what happens in the run of a seed."""
    random = Random(f'script {seed}')
    names, weights = list(rules), [rule.weight for rule in rules.values()]
    happens = []
    for step in range(steps):
        if random.randrange(STEPS_PER_EVENT) == 0:
            name = random.choices(names, weights)[0]
            arguments = tuple(random.choice(values) for values in rules[name].arguments)
            happens.append(ScriptLine(step, name, arguments))
    return tuple(happens)


def play(
    model_of: Callable[[int], Model], rules: FuzzEvents, seed: int, script: Script, steps: int
) -> tuple[int, Finding | None]:
    """Drive the model of a seed through a script; return the steps, and the first violation."""
    lines, step, model = list(reversed(script)), 0, None
    try:
        model = model_of(seed)
        for step in range(steps):
            while lines and lines[-1].step <= step:
                line = lines.pop()
                rules[line.rule].act(model, *line.arguments)
            model.step()
    except Violation as found:
        done = tuple(line for line in script if line.step <= step)
        choices = dict(model.choices) if model else {}
        return step + 1, Finding(seed, step, found.rule, str(found), choices, done)
    finally:
        if model:
            model.close()
    return steps, None


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """What is hunted in: a model for each seed, what may happen to it, and how long a run is."""

    model_of: Callable[[int], Model]
    rules: FuzzEvents
    run_steps: int

    def hunt(self, steps: int, seed: int, *, findings: int = 1) -> CampaignResult:
        """Drive models for so many steps in all, from this seed on, until so many findings."""
        hunted, begin_s = CampaignResult(), time.perf_counter()
        while hunted.steps < steps and len(hunted.findings) < findings:
            own_seed, left = seed + hunted.runs, min(self.run_steps, steps - hunted.steps)
            script = draw_script(own_seed, self.rules, left)
            done, finding = play(self.model_of, self.rules, own_seed, script, left)
            hunted.happened.update(line.rule for line in script if line.step < done)
            hunted.runs, hunted.steps = hunted.runs + 1, hunted.steps + done
            if finding:
                hunted.findings.append(finding)
        hunted.seconds = time.perf_counter() - begin_s
        return hunted

    def shrink(self, finding: Finding) -> Finding:
        """Return the finding with a script that is no longer than it needs to be, about."""
        runs, size = 0, max(1, len(finding.script) // 2)
        while size and runs < SHRINK_RUNS:
            begin = 0
            while begin < len(finding.script) and runs < SHRINK_RUNS:
                script = finding.script[:begin] + finding.script[begin + size :]
                runs += 1
                steps = finding.step + 60
                _, other = play(self.model_of, self.rules, finding.seed, script, steps)
                if other and other.rule == finding.rule:
                    finding = other
                else:
                    begin += size
            size //= 2
        return finding
