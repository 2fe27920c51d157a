# SPDX-License-Identifier: Apache-2.0
"""The check for finite values, against numpy's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
import numpy as np
import pytest

from lerobot_serve.arrays import is_finite, SMALL_SIZE

SHAPES = arrays.array_shapes(max_dims=2, max_side=SMALL_SIZE + 1)
LARGEST = np.finfo(np.float64).max


@given(
    st.sampled_from([np.float32, np.float64]).flatmap(
        lambda element: arrays.arrays(element, SHAPES, fill=st.floats(width=32))
    )
)
def test_it_agrees_with_numpy(values: np.ndarray) -> None:
    assert is_finite(values) == np.isfinite(values).all()


@pytest.mark.parametrize('size', [0, 1, SMALL_SIZE, SMALL_SIZE + 1])
def test_a_single_value_decides_wherever_it_is(size: int) -> None:
    assert is_finite(np.zeros(size))
    assert is_finite(np.full(size, LARGEST))
    for wrong in (np.nan, np.inf, -np.inf):
        for place in range(size):
            values = np.full(size, LARGEST)
            values[place] = wrong
            assert not is_finite(values)
