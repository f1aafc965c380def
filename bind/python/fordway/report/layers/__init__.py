"""Analysis of messages of many sizes on many set-ups: `fordway bench pingpong`, and published tables of its
kind.
"""
