# SPDX-License-Identifier: Apache-2.0
"""
Tools that read records, or examine and operate a system from outside; the console command is in
cli/. No node imports this package; test_architecture checks this. Each runs in the process of
lerobot-serve in one thread, except dashboard, recorder, rerun_view and doctor, which have more.
"""
