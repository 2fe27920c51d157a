# SPDX-License-Identifier: Apache-2.0
"""
A night of the learning loop in simulated time: the real conductor, learner, router and gate under
one clock, with robots whose episodes succeed at the true rate of the policy that drives them.

`night` joins all parts. Played are what needs ROS or hours: robots, policy servers and the links
between nodes (`robots`, `servers`, `router_process`), the conversion of bags into a dataset and
the processes of the steps (`learner_process`), and the client of the operator's verbs
(`loop_process`).
"""
