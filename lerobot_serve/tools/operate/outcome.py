# SPDX-License-Identifier: Apache-2.0
"""
The result of an operation, and what is known when there is none.

Exit statuses of the verbs: 0 done and confirmed, or nothing to do; 1 refused, nothing was changed;
2 a wrong command line; 3 sent, and not confirmed; 4 partly done; 130 interrupted. docs/operate.md
has the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from lerobot_serve.errors import UserError
from lerobot_serve.tools.output.report import Report

EXIT_UNKNOWN = 3
# what is true and can be done while a router does not answer
WITHOUT_ROUTER = (
    'Nothing was changed. Robots play what is left of their queue, run their fallback ladders '
    'and connect again by themselves. To stop them: `lerobot-serve robot NAME pause`, or all with '
    '`lerobot-serve robot --all pause`. Then restart the router: its decisions are stored'
)


class NotReached(UserError):
    """The node did not get the request: nothing was changed."""


class PartlyDone(UserError):
    """Something was changed and the rest failed; the text says what, and what to type now."""

    exit_status = 4


class ResultUnknown(Exception):
    """The request was sent, and its result is not known; the text says what is known."""

    exit_status = EXIT_UNKNOWN


@dataclass(frozen=True, slots=True)
class Result:
    """
    What an operation did: `text` is the reply of the node, `changes` the differences between the
    states before and after, `by` the operator.
    """

    verb: str
    node: str
    text: str
    by: str = ''
    changes: list[str] = field(default_factory=list)

    def report(self) -> Report:
        """Return what the verb prints; the states may have texts of the network."""
        lines = [f'{self.node}: {self.text}', *(f'  {change}' for change in self.changes)]
        by = [f'  by {self.by}'] if self.by else []
        return Report(asdict(self), [*lines, *by], has_changed=True)


def unconfirmed_text(node: str, what: str, *, accepted: str, last: str, age_s: float) -> str:
    """
    Return what is known about a request without a confirmation. `accepted` is the reply, empty
    without one; `last` the newest state, `age_s` the time since it arrived.
    """
    reply = f'{node} accepted it ({accepted})' if accepted else f'{node} did not reply'
    effect = 'the new state was not published in time' if accepted else 'it may have run or not'
    return (
        f'UNKNOWN: {what} was sent; {reply}, so {effect}. Last known, {age_s:.1f} s ago: {last}. '
        'Read the state with `lerobot-serve rollout status`; a drain, a verdict and the split '
        'survive a restart of the router. Then run the command again: it does nothing when it is '
        'done already (but `rollout promote`, which promotes to the step after it)'
    )
