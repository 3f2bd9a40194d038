"""Benchmarks of segkernels against what a user would have written: run ``python -m bench``.

Every answer is checked before it is timed, peers' answers too; a wrong one prints FAIL instead of a time. Speed is a
ratio of times taken in turns in one process; seconds of different runs or machines are not comparable.
"""
