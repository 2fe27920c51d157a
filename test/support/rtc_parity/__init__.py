# SPDX-License-Identifier: Apache-2.0
"""
Remote real-time chunking and LeRobot's own loop under one script of delays, compared byte by
byte. Used by test_rtc_parity; one thread; needs LeRobot.
"""
