# SPDX-License-Identifier: Apache-2.0
"""
Explains an incident of one robot from all traces that cover it. Flow: survey -> window ->
window_facts -> diagnose -> report. Each cause is evaluated on the facts of a window: yes, no, or
no evidence, and when it lasted. Records join by client, session_epoch and seq, never by clock.
Called by `lerobot-serve diagnose`. One thread; memory grows with the window.
"""
