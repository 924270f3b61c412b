"""The soak: hostile writers on real databases, Strandline killed again and again beside them, and what was lost.

Run from the repository: `make soak`, or `python -m soak --help`.
"""
