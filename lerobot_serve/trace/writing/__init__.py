# SPDX-License-Identifier: Apache-2.0
"""
Write the trace of one run: a bounded queue, one writer thread, rotating files. TraceWriter.write
is called by any thread and never blocks; TraceWriter.run is the body of the thread `trace`.
"""
