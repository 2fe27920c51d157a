# SPDX-License-Identifier: Apache-2.0
"""
Checks traces and bags against the invariants of docs/audit.md and reports violations: one class an
invariant. Called by `lerobot-serve audit` and by the demo. Shares no code with the cage, queue and
router that it checks. One thread; memory grows with runs and clients, not with lines.
"""
