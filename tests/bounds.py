"""How large an error may be: BOUND * eps times one of these, of the magnitudes of the operands and of the result of a segment."""

import numpy as np
import oracles

BOUND = 64  # a fold of n rows is bounded by n eps, n <= 256 here, and errs by far less on random values


def exact(op, options, parts, want):
    return np.zeros(want.shape)


def of_magnitudes(op, options, parts, want):
    """The operation on the absolute values, as for every sum of products."""
    return op.oracle(*(p if p.dtype == bool else np.abs(p) for p in parts), **options)


def largest(x):
    x = oracles.floating(x)
    return np.max(np.where(np.isfinite(x), np.abs(x), 0), axis=0, initial=0)


def of_logarithm(op, options, parts, want):
    return 1 + np.abs(want) + largest(parts[0])


def of_softmax(op, options, parts, want):
    return np.abs(want) * (1 + largest(parts[0]))


def of_squares(op, options, parts, want):
    return np.abs(want) + oracles.mean(np.abs(oracles.floating(parts[0])) ** 2)


def of_scores(op, options, parts, want):
    x = oracles.floating(parts[0])
    return 1 + np.abs(want) + (np.abs(x) + oracles.mean(np.abs(x))) / np.sqrt(oracles.var(x) + 1e-5)
