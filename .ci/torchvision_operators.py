# SPDX-License-Identifier: Apache-2.0
"""
Let PyPI's torchvision be imported beside a torch for CPUs: a start file of the environment.

Its compiled operators are linked against CUDA and do not load; its Python part describes them
while it is imported and ends with 'operator torchvision::nms does not exist'. The names alone are
enough for it: no policy and no training calls them. The workspace copies this module into its
virtual environment, beside a .pth file that imports it, only where no build for CPUs can be had.
"""

from __future__ import annotations

import sys
from typing import Any

SCHEMA = '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor'


class DeclareOperators:
    """A finder that finds nothing: it declares the operators before the first import."""

    # a library that is deleted takes its declarations with it
    declared: Any = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == 'torchvision' and DeclareOperators.declared is None:
            import torch

            DeclareOperators.declared = torch.library.Library('torchvision', 'FRAGMENT')
            for operator in ('nms', 'qnms'):
                DeclareOperators.declared.define(operator + SCHEMA)


sys.meta_path.insert(0, DeclareOperators())  # type: ignore[arg-type]
