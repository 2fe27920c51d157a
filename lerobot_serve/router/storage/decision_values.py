# SPDX-License-Identifier: Apache-2.0
"""What decisions say: which of them withhold a policy, and whether one can be read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lerobot_serve.router.placement.eligibility import BARRING_VERDICTS, PolicyVerdict
from lerobot_serve.router.storage.content import CANARY, DecisionKey, DRAIN, PARAMETER, VERDICT

WITHHOLDING_VERDICTS = tuple(verdict.value for verdict in BARRING_VERDICTS)
KNOWN_VERDICTS = tuple(verdict.value for verdict in PolicyVerdict)
# kind of a decision -> its fields and their types
FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    PARAMETER: {'value': (object,), 'file': (object,), 'when': (str,), 'by': (str,)},
    DRAIN: {'text': (str,), 'now': (bool,)},
    VERDICT: {'verdict': (str,), 'text': (str,), 'now': (bool,)},
    CANARY: {},
}


def withholding(decisions: Mapping[DecisionKey, Any]) -> dict[DecisionKey, Any]:
    """Return the decisions that withhold a policy or a slot: they take effect in any case."""
    return {
        (kind, name): value
        for (kind, name), value in decisions.items()
        if value
        and (
            (kind == DRAIN and value['text'])
            or (kind == VERDICT and value['verdict'] in WITHHOLDING_VERDICTS)
        )
    }


def decision_problem(kind: str, value: Any) -> str:
    """
    Return what is wrong with a decision that other programs can write, too; empty when nothing is.
    """
    if kind not in FIELDS:
        return f'unknown kind {kind!r}'
    if not isinstance(value, dict):
        return f'expected a JSON object, got {str(value)[:40]!r}'
    for name, kinds in FIELDS[kind].items():
        if name not in value or not isinstance(value[name], kinds):
            return f'{name} is missing or no {kinds[0].__name__}'
    if kind == VERDICT and value['verdict'] not in KNOWN_VERDICTS:
        return f'unknown verdict {value["verdict"]!r}'
    return ''
