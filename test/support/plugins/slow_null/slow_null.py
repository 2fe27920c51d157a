# SPDX-License-Identifier: Apache-2.0
"""The null policy on a slow device: the same chunks and fingerprint, a while later."""

from __future__ import annotations

import time

from lerobot_serve.policies.base import LoadOptions, PolicyRequest, Prediction
from lerobot_serve.policies.synthetic import null

TAKES_S = 0.06


class SlowNull(null.NullPolicy):
    """See the module."""

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        time.sleep(TAKES_S)
        return super().predict(requests)


def load(loading: LoadOptions) -> SlowNull:
    """Return the policy. Raises PolicyError."""
    return SlowNull(null.load(loading).describe())
