# SPDX-License-Identifier: Apache-2.0
"""Parse the "path" of policies without a model: their shape, as in DEFAULT. Any thread."""

from __future__ import annotations

import hashlib
import re

from lerobot_serve.policies.base import LoadOptions, PolicyCamera, PolicyDescription, PolicyError
from lerobot_serve.policies.option_checks import check_no_torch_options, check_options_match
from lerobot_serve.wire.schema import StateClass

DEFAULT = 'joints=6,chunk=100,cameras=,fps=30'
SHAPE = re.compile(r'joints=(\d+),chunk=(\d+),cameras=([^,]*),fps=(\d+(?:\.\d+)?)')
CAMERA = re.compile(r'(\w+):(\d+)x(\d+)')


def describe_shape(kind: str, options: LoadOptions, state_class: StateClass) -> PolicyDescription:
    """Return what a policy of the shape `options.path` says of itself. Raises PolicyError."""
    check_no_torch_options(options, kind)
    text = options.path or DEFAULT
    shape = SHAPE.fullmatch(text)
    cameras = (
        [CAMERA.fullmatch(part) for part in filter(None, shape[3].split('+'))] if shape else [None]
    )
    if not shape or not all(cameras):
        raise PolicyError(
            f'the path of a {kind} policy is its shape, for example {DEFAULT!r}, got {text!r}'
        )
    if not all(float(shape[i]) for i in (1, 2, 4)):
        raise PolicyError(f'joints, chunk and fps must be above 0, got {text!r}')
    names = tuple(f'joint_{i}.pos' for i in range(int(shape[1])))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    description = PolicyDescription(
        kind,
        f'{options.name or kind}@{digest}',
        names,
        names,
        tuple(PolicyCamera(f'observation.images.{c[1]}', int(c[2]), int(c[3])) for c in cameras),
        int(shape[2]),
        float(shape[4]),
        state_class,
    )
    check_options_match(options, description)
    return description
