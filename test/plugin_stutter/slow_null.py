"""The null policy on a slow device: the same chunks and fingerprint, a while later."""

from __future__ import annotations

import time

from lerobot_serve.policies import null
from lerobot_serve.policies.base import Loading, PolicyRequest, Prediction

TAKES_S = 0.06


class SlowNull(null.NullPolicy):
    """See the module."""

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        time.sleep(TAKES_S)
        return super().predict(requests)


def load(loading: Loading) -> SlowNull:
    """Return the policy. Raises PolicyError."""
    return SlowNull(null.load(loading).describe())
