"""Analyses messages of many sizes on many set-ups: runs of `fordway bench pingpong`, and similar published
tables.
"""
