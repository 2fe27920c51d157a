# SPDX-License-Identifier: Apache-2.0
"""
Outputs of the edge for operators and recorders: ~/state, ~/executed_action, diagnostics,
Prometheus metrics, log and trace. Reads counters of session/, control/ and the queue; nothing here
changes what the robot does. EdgeListener is called by `request`, `tick` and executor; a call
neither raises nor waits.
"""
