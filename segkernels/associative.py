"""Segmented scans with any associative function of the user's."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from segkernels import _check, _compat, _host, _pieces, _select
from segkernels._forms import Operation, apply
from segkernels._ragged import Ragged
from segkernels._segments import moved, start_flags
from segkernels.kernels import xla_tree


def segmented_associative_scan(
    fn, elems, segments=None, *, identity=None, exclusive=False, reverse=False, implementation=None
):
    """Scan each segment with an associative function, as `jax.lax.associative_scan` does one array.

    Plain JAX, differentiated by JAX: a fold by `jax.lax.scan` on CPU, a tree of such folds elsewhere. Each function
    object compiles anew: pass the same one again, not a new lambda. What it computes in float16 is rounded at each step.

    Args:
      fn: ``(earlier, later) -> combined``, associative, on pytrees like `elems` of some rows each: every array has a first
        axis of rows, over which it must work element by element. With `reverse` the first argument comes from the end.
      elems: an array ``[n, *feature]`` or a pytree of such with `segments`, whose features may differ; a `Ragged`, or a
        pytree of them of one layout; or a list of arrays ``[n_k, *feature]``.
      segments: the `Segments` of arrays.
      identity: what changes nothing, as a pytree like `elems` of scalars or arrays ``[*feature]``: needed for `exclusive`.
      exclusive: leave each row out of its own result; the first row of a segment gets the identity.
      reverse: go from the end of each segment.
      implementation: None, ``"xla"``, or a `Config` with walk ``"loop"`` or ``"associative"``.

    Returns:
      The results, in the form of `elems`; dead rows are 0.

    Raises:
      TypeError: an operand is of a kind that is not taken, or `fn` does not give what it gets.
      ValueError: shapes, offsets or names do not fit, or `identity` is missing.

    Products of matrices, which do not commute:

    >>> turn = np.array([[0, -1], [1, 0]])
    >>> segmented_associative_scan(jnp.matmul, [np.stack([turn] * 4), np.stack([turn])])[0][-1]
    array([[1, 0],
           [0, 1]])
    """
    call = "segmented_associative_scan"
    choice = _select.requested(call, implementation)
    _select.plain(choice, "it folds with a function of yours")
    if choice.config.walk not in (None, "loop", "associative"):
        raise ValueError(f"{call}: the walks of `implementation` are loop and associative here, got {choice.config.walk!r}")
    if not callable(fn) or type(fn).__hash__ is None:
        raise TypeError(f"{call}: `fn` must be a function, and hashable, got {type(fn).__name__}")
    if _check.flag(call, "exclusive", exclusive) and identity is None:
        raise ValueError(f"{call}: `identity` is needed for an exclusive scan, whose first rows it is")
    if segments is None and isinstance(elems, (list, tuple)) and not elems:
        return []
    if segments is None and not any(map(_is_ragged, jax.tree.leaves(elems, is_leaf=_is_ragged))):
        paths, tree = [((), elems)], jax.tree.structure(0)
    else:
        paths, tree = jax.tree_util.tree_flatten_with_path(elems, is_leaf=_is_ragged)
    names = tuple(f"elems{jax.tree_util.keystr(path)}" for path, _ in paths)
    if not names:
        raise ValueError(f"{call}: `elems` must hold an array, got none")
    parts, identity_tree = jax.tree.flatten(identity)
    if identity is not None and identity_tree != tree:
        raise ValueError(f"{call}: `identity` must be a pytree like `elems`, {tree}, got {identity_tree}")
    for part, (_, leaf) in zip(parts, paths):
        _check_identity(call, part, leaf)
    identities = tuple(f"identity{name.removeprefix('elems')}" for name in names[: len(parts)])
    operation = Operation(call, _scan, to_rows=True, by_heads=True, free=True)
    out = apply(operation, {name: leaf for name, (_, leaf) in zip(names, paths)}, segments, extra=dict(zip(identities, parts)),
                fn=fn, tree=tree, names=names, identities=identities, exclusive=exclusive, reverse=reverse,
                choice=choice)  # fmt: skip
    return jax.tree.unflatten(tree, out)


def _check_identity(call, identity, leaf):
    """Refuse a number that the dtype of a leaf does not have."""
    if _check.is_traced(identity):
        return
    leaf = leaf.values if _is_ragged(leaf) else leaf
    dtype = _host.arrays(call, leaf).dtype if isinstance(leaf, (list, tuple)) else jnp.result_type(leaf)
    value = _host.as_numpy(call, "`identity`", identity)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = value.astype(dtype)
    exact = dtype.kind in "biu" or (value.dtype.kind == "c" and dtype.kind != "c")
    if exact and not np.array_equal(kept, value):
        raise ValueError(f"{call}: `identity` must be of numbers that {dtype}, the dtype of `elems`, has, got {identity}")


def _is_ragged(x):
    return isinstance(x, Ragged)


def _scan(lead, segments, *, fn, tree, names, identities, exclusive, reverse, choice, **operands):
    n_live, *parts = _compat.alike((jnp.asarray(segments.offsets[-1]), lead, *(operands[name] for name in names[1:])))
    n = lead.shape[0]
    identity = [_identity_row(choice.call, operands[name], x) for name, x in zip(identities, parts)]
    flat = _on_leaves(choice.call, fn, tree, parts)
    if n == 0:
        return tuple(parts)
    resets = start_flags(_pieces.heads(segments, n), n_live, n, reverse)

    def join(earlier, reset, later):
        """`fn` where no segment starts. There it gets stand-ins without a gradient, which could be infinite, and is dropped."""
        still = [lax.stop_gradient(x) for x in later]
        joined = flat([_pick(reset, s, x) for s, x in zip(still, earlier)], [_pick(reset, s, x) for s, x in zip(still, later)])
        return [_pick(reset, x, y) for x, y in zip(later, joined)]

    def loop(parts, resets):
        def step(state, row):
            reset, later = row
            state = join(state, reset[None], [x[None] for x in later])
            return state, [x[0] for x in state]

        # More rows a step are faster where the loop stays native: see `kernels.xla_loop`.
        thin = sum(math.prod(x.shape[1:]) * x.dtype.itemsize for x in parts) <= 4 and not _compat.SMALL_LOOPS
        unroll = (8 if thin else 4) if isinstance(n, int) else 1
        return lax.scan(step, [x[:1] for x in parts], (resets, list(parts)), reverse=reverse, unroll=unroll)[1]

    def associative(parts, resets):
        return xla_tree.scan(join, resets, parts, reverse=reverse)[1]

    walks, walk = dict(loop=loop, associative=associative), choice.config.walk
    if not isinstance(n, int):
        walk = walk or "loop"  # the other one needs the number of rows
    out = walks[walk](parts, resets) if walk else lax.platform_dependent(parts, resets, cpu=loop, default=associative)
    if exclusive:
        out = [_pick(resets, e, moved(y, on=not reverse)) for e, y in zip(identity, out)]
    return tuple(_pieces.live(y, segments) for y in out)


def _pick(flags, x, y):
    """Rows of `x` where flags are set, else of `y`."""
    return jnp.where(_pieces.over_features(flags, y), x, y)


def _identity_row(call, identity, x):
    identity = jnp.asarray(identity).astype(x.dtype)
    if identity.shape not in ((), x.shape[1:]):
        raise ValueError(f"{call}: `identity` must be a scalar or of shape {x.shape[1:]}, got shape {identity.shape}")
    return jnp.broadcast_to(identity, x.shape[1:])[None]


def _on_leaves(call, fn, tree, parts):
    """`fn` on lists of leaves; refused if it does not give what it gets."""

    def flat(earlier, later):
        return jax.tree.leaves(fn(jax.tree.unflatten(tree, earlier), jax.tree.unflatten(tree, later)))

    row = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype) for x in parts])
    got = jax.eval_shape(fn, row, row)
    if jax.tree.structure(got) != tree or any((g.shape, g.dtype) != ((1, *x.shape[1:]), x.dtype)
                                              for g, x in zip(jax.tree.leaves(got), parts)):  # fmt: skip
        raise TypeError(f"{call}: `fn` must give what it gets, {_shapes(row)}; it gives {_shapes(got)}")
    return flat


def _shapes(tree):
    return jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree)
