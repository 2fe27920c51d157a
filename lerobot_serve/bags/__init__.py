"""
Bags: what went over the topics, as files that `ros2 bag` writes and reads. docs/bags.md has it.

    message      one recorded message; what is wrong with a bag
    definitions  the text that says how a type looks, from the .msg files of its package
    profiles     QoS profiles as rosbag2 writes them
    metadata     the file metadata.yaml of a bag's folder
    writer       a folder with one MCAP file
    recording    what waits to be written, and the thread that writes
    mcap_file, sqlite_file, reader   all messages of a bag, whoever recorded it
    pairs        requests and answers of a bag, joined
    told         the messages that the audit needs, decoded
    as_trace     a bag as records of a trace, for audit and stats

node.py is the recorder. All else is plain: it needs no ROS.
"""
