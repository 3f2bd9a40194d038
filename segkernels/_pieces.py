"""What the bodies of operations are made of: the verbs over any number of feature axes, and steps that several share."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from segkernels import _verbs
from segkernels._algebra import ADD, MAX, itself
from segkernels._segments import only_live


def scan(monoid, parts, segments, *, exclusive, reverse, choice):
    """The monoid along each segment, in the shape of the last part; dead rows 0."""
    *_, values = parts
    bits, n_live = heads(segments, values.shape[0]), jnp.asarray(segments.offsets[-1])
    (out,) = _verbs.scan(tuple(map(_verbs.columns, parts)), bits, n_live, monoid=monoid, exclusive=exclusive,
                         reverse=reverse, choice=choice)  # fmt: skip
    return out.reshape(values.shape)


def heads(segments, n):
    """The head bits for `n` rows: those at hand, or made where the call runs."""
    if segments.is_prepared(n) or isinstance(segments.offsets, np.ndarray):
        return segments.head_bits(n)
    return _verbs.heads(segments.offsets, n)


def reduce(monoid, values, segments, *, choice, of=itself, per_segment=()):
    """The monoid over each segment, ``[num_segments, *feature]``; empty ones give its identity.

    It folds what `of` makes of each row, of the rows of `per_segment` for its segment and of its position there: see
    `_verbs.reduce`.
    """
    (out,) = _verbs.reduce((_verbs.columns(values),), jnp.asarray(segments.offsets), monoid=monoid, choice=choice, of=of,
                           per_segment=tuple(map(_verbs.columns, per_segment)))  # fmt: skip
    return out.reshape(segments.num_segments, *values.shape[1:])


def spread(per_segment, segments, n, *, choice):
    """Each row of ``[num_segments, *feature]`` over the rows of its segment: ``[n, *feature]``; dead rows 0.

    A step on the way: machines that do not spread leave it to another one.
    """
    out = _verbs.spread(_verbs.columns(per_segment), jnp.asarray(segments.offsets), n=n, choice=choice.derived())
    return out.reshape(n, *per_segment.shape[1:])


def take(values, rows, there):
    """Rows of `values`, by select 0 where `there` is false; `rows` may be anything then."""
    if 0 in values.shape or not rows.shape[0]:
        return jnp.zeros((rows.shape[0], *values.shape[1:]), values.dtype)
    # The barrier: see `Ragged.to_padded`.
    taken = lax.optimization_barrier(values[jnp.clip(rows, 0, values.shape[0] - 1)])
    return jnp.where(over_features(there, values), taken, jnp.zeros((), values.dtype))


def over_features(x, values):
    """One number a row or a segment, to meet values with features."""
    return x.reshape(x.shape + (1,) * (values.ndim - x.ndim))


def lengths(segments, like):
    """The lengths of segments, to meet values ``[num_segments, *feature]``."""
    return over_features(jnp.asarray(segments.lengths), like)


def live(values, segments, fill=0):
    """The values, and `fill` in dead rows, which may hold what no gradient may meet."""
    return only_live(values, jnp.asarray(segments.offsets[-1]), fill)


def mean(values, segments, *, choice):
    """The mean of each segment of floats; 0 of an empty one."""
    total = reduce(ADD, values, segments, choice=choice)
    return total / jnp.maximum(lengths(segments, total), 1).astype(total.dtype)


def deviations(values, segments, *, choice):
    """Each live row minus the mean of its segment."""
    values = live(values, segments)
    return values - spread(mean(values, segments, choice=choice), segments, values.shape[0], choice=choice)


def squared_distance(rows, means, position):
    """The squared distance of a row from the mean of its segment; for reductions to fold."""
    del position
    return (squares(rows[0] - means[0]),)


def squares(values):
    """The squares of real numbers, and of complex ones those of their magnitudes."""
    return jnp.square(values.real) + jnp.square(values.imag) if jnp.iscomplexobj(values) else jnp.square(values)


def top(values, segments, *, choice):
    """The largest of each segment, to be taken out before `exp`; of no gradient itself."""
    return reduce(MAX, lax.stop_gradient(values), segments, choice=choice)
