# SPDX-License-Identifier: Apache-2.0
"""
The three pickled classes of LeRobot's async inference, for benchmarks and tests without LeRobot.

The name of this module has the length of LeRobot's, so that the one can be put in the place of the
other in any pickle; test_pickles_of_lerobot.py compares the bytes.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
import pickle
from typing import Any

OURS, THEIRS = b'benchmarks.harness.peer_classes', b'lerobot.async_inference.helpers'
assert len(OURS) == len(THEIRS) == len(__name__)


@dataclass
class TimedData:
    timestamp: float
    timestep: int


@dataclass
class TimedAction(TimedData):
    action: Any


@dataclass
class TimedObservation(TimedData):
    observation: dict[str, Any]
    must_go: bool = False


@dataclass
class RemotePolicyConfig:
    policy_type: str
    pretrained_name_or_path: str
    lerobot_features: dict[str, Any]
    actions_per_chunk: int
    device: str = 'cpu'
    rename_map: dict[str, str] = field(default_factory=dict)


def pickled(value: object, protocol: int = 4) -> bytes:
    """Return the pickle as LeRobot's client writes it."""
    return pickle.dumps(value, protocol).replace(OURS, THEIRS)


def unpickled(data: bytes) -> Any:
    """Return the value of a pickle, with the classes of this module."""
    return pickle.loads(data.replace(THEIRS, OURS))


def features(joints: tuple[str, ...], cameras: dict[str, tuple[int, int, int]]) -> dict[str, Any]:
    """Return what LeRobot's client derives from a robot."""
    state = {'dtype': 'float32', 'shape': (len(joints),), 'names': list(joints)}
    names = ['height', 'width', 'channels']
    return {'observation.state': state} | {
        f'observation.images.{name}': {'dtype': 'image', 'shape': shape, 'names': list(names)}
        for name, shape in cameras.items()
    }


# of LeRobot 0.4.4's server with torch 2.13: two steps of three actions, 0 to 5, at 1 s and 2 s
CHUNK_OF_SERVER = base64.b85decode(
    'fCQCP0{{R300018lqifJY-Mt9VsCUVVRLzIV_#`*W@U0^ZewLGXk~10WpZ<rj0;q0ZDnLZV{~b6Zj_UhDS?!Ilqi'
    'e|bZKp6b97;CaFj<s@Bjb+0001t2y|&}Wpi|8aFj~`j0Rz2bZKvHl#C2?Z*pU3E?;$YX>4<pj1pgRWny({Y-C?_W'
    'o~nCa$j~bl#`Swj16>ea${&Nb98TVVP|EOj1XUJZ((F#W^!+BUt)Q5Wpk91ltL2$004jjiVAG}oJRQ|YN${dE`S0'
    '}=>sl+0)24+C|D2x003}uZ**^CZ){(7WpZ<AZ*Fk`P3Z$z4FCWDY-x0KY-L|%Ze(d;ZgB#LSPB3D0Cah9WnXh?dS'
    '!EQ1ATD>C|Csm0047nZ*p{T1xo^00{{R3X>N3J21^831ONa4Y;SI7aR*BTb#*R)0w`Dq0001UbZ>HDXJv5!V{~tF'
    'V`vISY;R$7Q*>`~VP|CuaRFEk0000vG%_<YHa0LbIXN;oFmVD{0{{R3V{mnG14{-@ba4bxE`S1EaR68j0000vG%_'
    '<YHa0LbIXN;oFmVB4E(QPq00000000000001hKL7v#KmY(hKmY)MKmY)sK$L})Qj|*oO9O?JO96$HiHr+lZ)|L3V'
    '{~b6ZgZ533r})nWpZU?L}_Dml#`SxQj~O*Qj~RKXagyMlzo&aXa+|>000000001J2TK8H2xto^XbwUX0RRAi0*VT'
    '3{G3MlAZn;k87_bVP3Z$JfC7DS04P`x0001Ra&L5RV{dF<c4cyNX>V?E0Zr)xSPcLG0BmV=bZli`Wo~3?VQz5(h*'
    '$~$004A(aAjX}X?kUIaRYsE1SnVq0001UXm4_KaRo~PSOWk60BLS?aRy5SSOfq70Bmn=XK@Eh1a);TfC4C32LJ#7'
    'b98TVVP|D=0AqA-a${%;Mr?0kbW?P1a$#p>3UL8g4gdfEIW#geGd4CbGdVdjI52SnSOWk60Ap}<aRW;RPIPeuQ7('
    'W2U2y<d4gdfEIW#geGd4CbGdVdjI52SmVJ-#$000000000000000fIk2L06+i$KtKQhfIt8Mpg@#`lv0#S14{#il'
    'uH4Hl!<5-DN>Yllv0#+Vr4D'
)
