# SPDX-License-Identifier: Apache-2.0
"""
What every benchmark drives: child processes, nodes under test, a client, a load generator, an
echo. Called by the benchmarks from the main thread; replies arrive in threads named `answers`.
"""
