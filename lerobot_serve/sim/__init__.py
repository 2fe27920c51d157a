"""
A small robot, its task and its cameras: for the demo, the tests and to train the demo policy.

Plain modules: time steps are passed in, nothing reads a clock, and only node.py knows ROS.
"""
