# SPDX-License-Identifier: Apache-2.0
"""The last minute of a robot that nobody runs, and a request of it."""

from __future__ import annotations

import math

import cv2
import numpy as np

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path import observation
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import Codec, MsgType
from lerobot_serve.tools.dashboard.robot_window import Executed, Heard, ShownPlan
from support.dashboard.example_fleet import V1 as POLICY

JOINTS = ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'wrist_roll', 'gripper')
CAMERAS = ('top', 'wrist')
SEQ = 12
WINDOW_S, STEP_MS, PLAN_STEPS, CLAMP = 60, 66, 40, 0.56
# of the window, from its end: the ladder and what the cage changed
RAMP_S, HOLD_S, POLICY_AGAIN_S = 22.0, 21.0, 18.0


def wanted(t_ms: float, joint: int) -> float:
    phase = t_ms / 3000 + joint
    return (0.35 + 0.06 * joint) * math.sin(phase) + 0.05 * math.sin(3 * phase)


def clamped(value: float) -> float:
    return max(-CLAMP, min(CLAMP, value))


def last_minute(now_ms: int) -> Heard:
    """Return what is heard of a robot whose ladder took over for a while."""
    times = range(now_ms - WINDOW_S * 1000 + STEP_MS, now_ms, STEP_MS)
    future = [now_ms + STEP_MS * step for step in range(PLAN_STEPS)]
    joints = range(len(JOINTS))
    return Heard(
        executed=[executed(t, rung((now_ms - t) / 1000)) for t in times],
        plan=ShownPlan(
            future, [[wanted(t, joint) for t in future] for joint in joints], POLICY, SEQ
        ),
        names=JOINTS,
        images=(SEQ, CAMERAS),
    )


def executed(t_ms: int, rung: str) -> Executed:
    asked = tuple(wanted(t_ms, joint) for joint in range(len(JOINTS)))
    is_clamped = any(abs(value) > CLAMP for value in asked)
    cage, reason = ('CLAMPED', f'gripper above {CLAMP}') if is_clamped else ('PASS', '')
    why = 'no fresh action' if rung != 'POLICY' else reason
    return Executed(t_ms, tuple(map(clamped, asked)), asked, rung, cage, why)


def rung(age_s: float) -> str:
    if age_s > RAMP_S or age_s < POLICY_AGAIN_S:
        return 'POLICY'
    return 'RAMP' if age_s > HOLD_S else 'HOLD'


def request() -> bytes:
    """Return the bytes of an observation with the images of both cameras."""
    images = tuple(image_codec.encode(name, picture(name), Codec.JPEG) for name in CAMERAS)
    header = Header(SEQ, 0, 1, 1, 1, int(MsgType.OBSERVATION), 0)
    return observation.encode(
        observation.Observation(
            header, 'robot_1', 'robot_1-1', np.zeros((1, 6), np.float32), images
        )
    )


def picture(camera: str) -> np.ndarray:
    """Return an arm at a table, from above or from its wrist."""
    is_top = camera == 'top'
    drawn = np.full((240, 320, 3), (208, 206, 200) if is_top else (180, 176, 168), np.uint8)
    cv2.rectangle(drawn, (0, 170), (320, 240), (152, 142, 128), -1)
    elbow, hand = ((150, 96), (222, 92)) if is_top else ((196, 110), (236, 140))
    cv2.line(drawn, (120, 196), elbow, (64, 60, 58), 15, cv2.LINE_AA)
    cv2.line(drawn, elbow, hand, (82, 76, 72), 11, cv2.LINE_AA)
    cv2.rectangle(drawn, (232, 172), (260, 200), (214, 92, 60), -1)
    return drawn
