# SPDX-License-Identifier: Apache-2.0
"""
Measurements behind docs/benchmarks.md and docs/performance.md; not installed.
`make bench` runs `python -m benchmarks [NAME ...]` from the top of the repository.
Each module here has ABOUT, PARAMETERS and measure(rounds, folder) -> list[Case]; main thread.
May import all of lerobot_serve; nothing in lerobot_serve imports it.
"""
