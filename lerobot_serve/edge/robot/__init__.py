# SPDX-License-Identifier: Apache-2.0
"""
The description of a robot: its YAML file, limits, units, which state value measures which joint,
commands as messages. Read once at start-up by wiring.py, doctor and the audit; pure functions
afterwards, any thread.
"""
