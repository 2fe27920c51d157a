# SPDX-License-Identifier: Apache-2.0
"""
The smallest whole learning loop, in real processes, and what is seen of it.

`fleet` starts it, `witness` hears it, `stages` says what it does now, `judging` reads afterwards
what it left. Used by the benchmarks `loop_kills` and `loop`.
"""
