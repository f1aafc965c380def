"""`fordway model advise`: what a tree would take down every lane that a machine was measured with, and which
lane to choose.
"""
