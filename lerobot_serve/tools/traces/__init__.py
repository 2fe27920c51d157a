# SPDX-License-Identifier: Apache-2.0
"""
Reads the traces that nodes wrote: runs, records in time order, typed fields, stalls (query.py is
the entry). Called by audit, stats, diagnosis, replay and bags, in one thread; memory does not grow
with lines. Reads the formats of trace/. Independent of nodes, cage and queue; contains no checks,
which belong to the audit.
"""
