# SPDX-License-Identifier: Apache-2.0
"""
Reads the traces that nodes wrote: runs, records in time order, typed fields, stalls (query.py is
the entry). Used by audit, stats, diagnosis, replay and bags. Reads trace/ formats only; knows no
node, cage or queue. No judgement here: the audit's checks and bounds are its own. One thread;
memory does not grow with lines.
"""
