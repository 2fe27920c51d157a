# SPDX-License-Identifier: Apache-2.0
"""Check what a caller observed, and keep the history that some policies need. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
import numpy as np
from numpy.typing import ArrayLike

from lerobot_serve.arrays import Float32Array, FrameArray, is_finite
from lerobot_serve.client.errors import WrongObservation
from lerobot_serve.contract.image_codec import COLORSPACE, is_frame
from lerobot_serve.contract.records import CameraSpec

SHOWN_NAMES = 12


class Observed(Struct, frozen=True, eq=False):
    """One observation: `state` has one value a name, `frames` are RGB, height x width x 3."""

    state: Float32Array
    frames: dict[str, FrameArray]

    def copy(self) -> Observed:
        """Return one that shares no image."""
        return Observed(self.state, {name: each.copy() for name, each in self.frames.items()})


class ObservationCheck:
    """Checks observations of one session against its names; any thread."""

    def __init__(self, state_names: tuple[str, ...], cameras: tuple[CameraSpec, ...]) -> None:
        self._state_names = state_names
        self._cameras = {camera.name: camera for camera in cameras}

    def __call__(
        self, state: ArrayLike, images: Mapping[str, Any] | None, *, copy: bool = True
    ) -> Observed:
        """
        Return an observation. Raises WrongObservation. Without `copy` it shares the memory of its
        images: for one that is sent before the caller may render the next one into it.
        """
        return Observed(self._state(state), self._frames(images or {}, copy))

    def _state(self, state: ArrayLike) -> Float32Array:
        try:
            values = np.array(state, np.float32).reshape(-1)
        except (TypeError, ValueError) as error:
            raise WrongObservation(
                f'state is not an array of numbers ({error})', self._state_remedy()
            ) from None
        if len(values) != len(self._state_names):
            raise WrongObservation(
                f'state has {len(values)} values, the session has {len(self._state_names)}',
                self._state_remedy(),
            )
        if not is_finite(values):
            names = [self._state_names[at] for at in np.flatnonzero(~np.isfinite(values))]
            raise WrongObservation(
                f'state holds NaN or infinity in {shown(names)}', 'send finite values'
            )
        return values

    def _state_remedy(self) -> str:
        return f'give one value for each of {shown(self._state_names)}, in this order'

    def _frames(self, images: Mapping[str, Any], copy: bool) -> dict[str, FrameArray]:
        missing, unknown = self._cameras.keys() - images, images.keys() - self._cameras.keys()
        if missing or unknown:
            parts = (
                f'no image of {shown(sorted(missing))}' if missing else '',
                f'images of unknown cameras {shown(sorted(unknown))}' if unknown else '',
            )
            raise WrongObservation(
                ' and '.join(filter(None, parts)),
                f'give one image for each of {shown(self._cameras)}; these are the names of the '
                'session',
            )
        return {
            name: self._frame(camera, images[name], copy) for name, camera in self._cameras.items()
        }

    def _frame(self, camera: CameraSpec, image: Any, copy: bool) -> FrameArray:
        frame = np.array(image) if copy else np.asarray(image)
        if frame.ndim == 2 and camera.channels == 1:
            frame = frame[:, :, None]
        if is_frame(frame) and frame.shape[2] == camera.channels:
            return frame
        raise WrongObservation(
            f'the image of {camera.name} has shape {frame.shape} of {frame.dtype}',
            f'give height x width x {camera.channels} of uint8'
            + _image_remedy(frame, camera.channels),
        )


def _image_remedy(frame: np.ndarray[Any, Any], channels: int) -> str:
    """Return how two usual images become one that is taken; empty for others."""
    if frame.ndim == 3 and frame.shape[0] in COLORSPACE and frame.shape[2] != channels:
        return ': channels come last, use image.transpose(1, 2, 0)'
    if frame.dtype.kind == 'f':
        return ': pixels are 0 to 255, use (image * 255).astype(numpy.uint8)'
    return ''


class ObservationHistory:
    """
    The observations of the last control steps of one episode, for requests that carry several. The
    caller of a session owns it.
    """

    def __init__(self, steps: int, stride_steps: int) -> None:
        self._steps_back = tuple(range((steps - 1) * stride_steps, -1, -stride_steps))
        self._known: deque[Observed] = deque(maxlen=self._steps_back[0] + 1)

    def add(self, observed: Observed) -> None:
        """Add the observation of a control step."""
        self._known.append(observed)

    def clear(self) -> None:
        self._known.clear()

    def resized(self, steps: int, stride_steps: int) -> ObservationHistory:
        """Return a history of another length with what is known."""
        other = ObservationHistory(steps, stride_steps)
        # without a history before, images may be the caller's
        other._known.extend(each.copy() if steps > 1 else each for each in self._known)
        return other

    def rows(self) -> tuple[tuple[Observed, int], ...]:
        """
        Return the observations of a request, oldest first, and how many steps back each is. A
        history that is too short repeats its oldest one; without any there are no rows.
        """
        known = list(self._known)
        if not known:
            return ()
        newest = len(known) - 1
        return tuple((known[max(0, newest - back)], back) for back in self._steps_back)


def shown(names: Any) -> str:
    """Return at most SHOWN_NAMES names for a text."""
    listed = list(names)
    more = f' and {len(listed) - SHOWN_NAMES} more' if len(listed) > SHOWN_NAMES else ''
    return f'{", ".join(listed[:SHOWN_NAMES])}{more}'
