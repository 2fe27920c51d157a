# SPDX-License-Identifier: Apache-2.0
"""
Single requests against batches: a small ACT on the CPU, large policies on a GPU.
Parts, each in one file: cpu, gpu, embeddings. Run by `make bench BENCH=batching`; main thread.
"""

from __future__ import annotations

ABOUT = 'chunks a second one by one and in batches, on a CPU and, where there is one, on a GPU'
PARTS = ('cpu', 'gpu', 'embeddings')
