"""
What every node needs of ROS: parameters, QoS, conversions, calls, and the runtime that owns the
threads.

With the node.py files, bench and cli this is the only room that imports rclpy.
"""
