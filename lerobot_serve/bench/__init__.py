"""Measurements of lerobot_serve, and the training of its demo policy."""
