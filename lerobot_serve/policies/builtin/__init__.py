"""
The demo's trained policy `builtin.reach`.

    policy      loading and running it
    network     what it computes
    settings    its policy.json
"""
