# SPDX-License-Identifier: Apache-2.0
"""
Explains an incident of one robot from all traces that cover it. Flow: survey -> window ->
window_facts -> rules -> report. Records join by client, session_epoch and seq, never by clock.
Called by `lerobot-serve diagnose`. One thread; memory grows with the window.
"""
