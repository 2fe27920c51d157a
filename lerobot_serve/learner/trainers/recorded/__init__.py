# SPDX-License-Identifier: Apache-2.0
"""
Reads what `lerobot-serve dataset` writes, with PyArrow, OpenCV and PyAV and without LeRobot:
`info`, `rows`, `outcomes` and `pictures`. Called by the built-in trainer, in its thread.
"""
