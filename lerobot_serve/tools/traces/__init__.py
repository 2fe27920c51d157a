# SPDX-License-Identifier: Apache-2.0
"""
Reads the traces that nodes wrote: runs, records in time order, typed fields, stalls (query.py is
the entry). Called by audit, stats, diagnosis, replay and bags, in one thread; memory does not grow
with lines. Reads the formats of trace/; knows no node, cage or queue, and judges nothing: the
checks of the audit and their bounds are its own.
"""
