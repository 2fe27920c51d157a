# SPDX-License-Identifier: Apache-2.0
"""
Tools that read records or examine a system from outside; the console command is in cli/. The four
nodes never import this package; test_architecture checks this. Runs in the process of
lerobot-serve with one thread each, except the recorder, rerun_view and doctor, which also have an
executor.
"""
