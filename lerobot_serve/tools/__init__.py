# SPDX-License-Identifier: Apache-2.0
"""
Tools that read records or look at a system from outside; the console command is in cli/. The four
nodes never import this package; test_architecture holds that. Runs in the process of `lerobot-
serve`; one thread each, but for bags/recording and doctor, which have an executor.
"""
