"""
Messages as bytes and bytes as arrays, without ROS.

The data path (Observation, ActionChunk) is built and read here directly as CDR, the bytes that ROS
2 puts on the wire, so that an image crosses with one copy and a router reads what it needs without
opening the rest. Tests hold the bytes equal to those of the generated messages.
"""
