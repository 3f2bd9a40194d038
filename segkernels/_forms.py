"""The three input forms of every operation: a list of arrays, a `Ragged`, flat values with their `Segments`.

An operation is a *body*: a function ``(values [n, *feature], segments, **others, **options)`` of JAX arrays whose
options are static. This file brings each form to a body and its result back. Concrete lists and NumPy values go through
the host: packed into a bucket, so that neither lengths nor their number are part of what JAX compiles for.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from segkernels import _check, _compat, _host
from segkernels._ragged import Ragged
from segkernels._segments import Segments, check_layout


def _each(function, out):
    """A function of the one result of a body, or of each of several."""
    return tuple(map(function, out)) if isinstance(out, tuple) else function(out)


@functools.cache
def jitted(body, donate=False):
    """The body under `jax.jit`, its keyword-only arguments static, its first one given away if `donate`."""
    names = {p.name for p in inspect.signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY}

    @functools.wraps(body)
    def gathered(*operands, **named):
        options = {name: named.pop(name) for name in names & named.keys()}
        operands, named = jax.tree.map(_whole, (operands, named))
        return body(*operands, **named, **options)

    return jax.jit(gathered, static_argnames=sorted(names), donate_argnums=(0,) if donate else ())


def _whole(x):
    """`x`, and if it is split along explicit axes of a mesh an array that is whole on each device, as loops need."""
    sharding = jax.typeof(x).sharding
    if all(axis is None for axis in sharding.spec):
        return x
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec()))


@dataclasses.dataclass(frozen=True)
class Operation:
    """What is run, and what it needs of a layout.

    Attributes:
      call: the name of the public function, for messages.
      body: what to run; it gives one array or a tuple of them.
      to_rows: whether it gives rows ``[n, *feature]``; else it gives one row a segment.
      by_heads: whether head bits and the number of live rows are all it needs to know of a layout, as scans do: then the
        number of segments is no part of what JAX compiles for.
      per_segment: the names of extra operands with an entry a segment.
      ordered: whether it orders its values, which complex numbers refuse.
      free: whether each operand may have features of its own; else it has those of the first one, or none.
    """

    call: str
    body: Callable
    to_rows: bool
    by_heads: bool = False
    per_segment: tuple[str, ...] = ()
    ordered: bool = False
    free: bool = False

    def run(self, rows, segments, extra, options):
        """The body on JAX arrays."""
        lead, *others = rows
        if self.ordered:
            _check.ordered(self.call, lead, rows[lead].dtype)
        if options.get("dtype") is not None:
            _check.keeps_imaginary(self.call, rows[lead].dtype, options["dtype"])
        x, others = rows[lead], {name: rows[name] for name in others} | extra
        donate = False
        rest = (*others.values(), *jax.tree.leaves(segments))
        if options["choice"].donate and not _check.is_traced(x, *rest) and not any(_host.same_memory(x, y) for y in rest):
            out = jitted(self.body).eval_shape(x, segments, **others, **options)
            donate = (out.shape, out.dtype) == (x.shape, x.dtype)  # else there is no use for the memory
        return jitted(self.body, donate)(x, segments, **others, **options)

    def on_host(self, rows, segments, extra, device, options):
        """The body on host buffers, at once and outside any trace: NumPy arrays that we may not write to."""
        with _compat.now():
            rows = {name: _host.put(values, device) for name, values in rows.items()}
            return _each(np.asarray, self.run(rows, segments, extra, options))

    def check_features(self, features) -> None:
        """Refuse operands whose trailing shapes, by name, do not fit that of the first one."""
        lead, *others = features
        for name in others:
            if not self.free and features[name] not in ((), features[lead]):
                raise ValueError(
                    f"{self.call}: `{name}` must have one entry a row, or one a value of `{lead}`, got rows of shape "
                    f"{features[name]} for rows of shape {features[lead]}"
                )

    def plan(self, segments: Segments, n) -> Segments:
        """What the body needs of a layout that may be known on the host."""
        if not (self.by_heads and isinstance(segments.offsets, np.ndarray)):
            return segments
        return Segments._make(segments.offsets[[0, -1]], segments.head_bits(n))

    def host_plan(self, segments: Segments, n) -> Segments:
        """The same of a layout that is known: what is not needed, or goes by buckets, is no part of what is compiled."""
        plan = self.plan(segments, n)
        return plan if self.by_heads else padded(plan.offsets)


def apply(operation: Operation, rows, segments, *, extra=None, **options):
    """Run an operation on its operands in whichever form they come.

    Args:
      operation: what to run.
      rows: its operands with a row for each row of the layout, by name. The first one decides the form.
      segments: the argument of the public function.
      extra: further operands by name, which have no rows.
      **options: of the body; ``dtype``, ``exclusive`` and ``reverse`` are checked here.
    """
    call, extra = operation.call, extra or {}
    (name, lead), *others = rows.items()
    form = next((form for form in (Ragged, list, tuple) if isinstance(lead, form)), None)
    if form is not None and segments is not None:
        raise TypeError(
            f"{call}: a {'Ragged' if form is Ragged else 'list'} has a layout of its own; pass no `segments` with it"
        )
    if "dtype" in options:
        options["dtype"] = _dtype(call, options["dtype"])
    options |= {flag: _check.flag(call, flag, options[flag]) for flag in ("exclusive", "reverse") & options.keys()}
    if form is None:
        return _flat(operation, rows, segments, extra, options)
    for other, operand in others:
        if not isinstance(operand, Ragged if form is Ragged else (list, tuple)):
            raise TypeError(
                f"{call}: `{other}` must come in the form of `{name}`, a {'Ragged' if form is Ragged else 'list of arrays'}, got "
                f"{type(operand).__name__}"
            )
    if form is Ragged:
        check_layout(call, lead.segments)
        for _, operand in others:
            lead._same_layout(call, operand)
        values = {name: operand.values for name, operand in rows.items()}
        for name, x in values.items():
            _check.kept(call, f"`{name}`", x)
        operation.check_features({name: x.shape[1:] for name, x in values.items()})
        extra = _extra(operation, extra, lead.segments.num_segments, lead.values.shape[1:])
        out = operation.run(values, operation.plan(lead.segments, lead.values.shape[0]), _on_jax(call, extra), options)
        return _each(lead.with_values, out) if operation.to_rows else out
    traced = any(_check.is_traced(*operands) for operands in (*rows.values(), extra.values())) or _may_close_over(operation)
    return (_traced_list if traced else _list)(operation, rows, extra, options)


def _may_close_over(operation):
    """Whether a function of the user's may hold what is traced right now: then nothing may run on the host."""
    return operation.free and _compat.tracing()


def _extra(operation, extra, s, feature):
    """The extra operands as arrays, and Python scalars, which promote nothing, as they are."""
    call, checked = operation.call, {}
    for name, x in extra.items():
        if not isinstance(x, jax.Array) and not _is_weak(x):
            x = _host.as_numpy(call, f"`{name}`", x)
            x = x.astype(x.dtype.newbyteorder("="), copy=False)
        if not _is_weak(x):
            _check.kept(call, f"`{name}`", x)
            _check.supported(call, name, x.dtype)
        if name in operation.per_segment and np.shape(x) != (s, *feature):
            raise ValueError(f"{call}: `{name}` must have one entry a segment, {(s, *feature)}, got shape {np.shape(x)}")
        checked[name] = x
    return checked


def _is_weak(x):
    """Whether `x` is a Python number, of the widths that JAX has."""
    return type(x) in (bool, float, complex) or (type(x) is int and -(2**31) <= x < 2**31)


def _on_jax(call, operands):
    return {name: x if _is_weak(x) else _host.to_jax(call, x) for name, x in operands.items()}


def _in_bucket(operation, extra, s):
    """Extra operands on the host; those with an entry a segment with zeros for the segments that fill up a bucket."""
    extra = {name: x if _is_weak(x) else np.asarray(x) for name, x in extra.items()}
    for name in set(operation.per_segment) & set(extra):
        x = extra[name]
        extra[name] = np.pad(x, ((0, s - len(x)),) + ((0, 0),) * (x.ndim - 1))
    return extra


def as_by(function, values, dtype=None):
    """Values in `dtype`; if it is None in that of a `jax.numpy` function of them, or as they are without one."""
    if function is None and dtype is None:
        return values
    return values.astype(dtype or jax.eval_shape(function, jax.ShapeDtypeStruct((1,), values.dtype)).dtype)


def flat_values(call, argument, x, segments):
    """Check a flat array and its layout; the array is NumPy unless it is a JAX array."""
    if segments is None:
        raise TypeError(
            f"{call}: `{argument}` must be a list of arrays, a `Ragged`, or an array together with `segments`, got "
            f"{type(x).__name__}{' without `segments`' * (np.ndim(x) > 0 if hasattr(x, 'ndim') else False)}"
        )
    check_layout(call, segments)
    if not isinstance(x, jax.Array):
        x = _host.as_numpy(call, f"`{argument}`", x)
    _check.kept(call, f"`{argument}`", x)
    _check.supported(call, argument, x.dtype)
    if x.ndim == 0:
        raise ValueError(f"{call}: `{argument}` needs a first axis, its rows, got a 0-d array")
    return x


def _dtype(call, dtype):
    if dtype is None:
        return None
    try:
        dtype = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{call}: `dtype` must be a dtype, got {dtype!r}") from error
    _check.supported(call, "dtype", dtype)
    return dtype.newbyteorder("=")


def padded(offsets) -> Segments:
    """A layout with trailing empty segments up to a bucket of their number."""
    s = len(offsets) - 1
    return Segments._make(np.pad(offsets, (0, _host.row_bucket(s) - s), mode="edge"))


def _list(operation, rows, extra, options):
    call, (lead, *_) = operation.call, rows
    packed = {name: _host.arrays(call, items, name=name) for name, items in rows.items()}
    extra = _extra(operation, extra, len(packed[lead].items), packed[lead].feature)
    operands = [*packed.values(), *(_host.Arrays.of(x) for x in extra.values() if not _is_weak(x))]
    device = next((p.device for p in operands if p.device is not None), None)
    if device is not None:
        packed = {name: p if p.device else _host.arrays(call, rows[name], device, name) for name, p in packed.items()}
    _same_lengths(call, packed)
    operation.check_features({name: p.feature for name, p in packed.items()})
    offsets, s = packed[lead].offsets, len(packed[lead].items)
    capacity = max(p.capacity for p in packed.values())
    segments = operation.host_plan(Segments._make(offsets), capacity)
    wide = [p.dtype for p in operands] + [options.get("dtype") or np.dtype(bool)]
    with _host.x64(*wide if device is None else ()):
        extra = _in_bucket(operation, extra, segments.num_segments)
        extra = extra if device is None else _on_jax(call, extra)
        out = operation.on_host({name: p.pack(capacity) for name, p in packed.items()}, segments, extra, device, options)
    if operation.to_rows:
        total = packed[lead].total
        return _each(lambda y: _host.split(y[:total].copy() if device is None else y, offsets, device), out)
    return _each(lambda y: y[:s].copy() if device is None else _host.put(y[:s].copy(), device), out)


def _same_lengths(call, listed):
    (lead, first), *others = listed.items()
    for name, p in others:
        if not np.array_equal(p.offsets, first.offsets):
            raise ValueError(f"{call}: the arrays of `{name}` must be as many and as long as those of `{lead}`")


def _traced_list(operation, rows, extra, options):
    call, joined = operation.call, {}
    listed = {name: _host.arrays(call, items, name=name) for name, items in rows.items()}
    _same_lengths(call, listed)
    for name, p in listed.items():
        dtype = jax.dtypes.canonicalize_dtype(p.dtype)
        parts = [_host.to_jax(call, x).astype(dtype) for x in p.items]
        joined[name] = jnp.concatenate(parts) if parts else jnp.zeros(0, dtype)
    offsets = next(iter(listed.values())).offsets
    out = _flat(operation, joined, Segments._make(offsets), extra, options)
    if not operation.to_rows:
        return out
    edges = offsets.tolist()
    return _each(lambda y: [jax.lax.slice_in_dim(y, a, b) for a, b in zip(edges, edges[1:])], out)


def _flat(operation, rows, segments, extra, options):
    call, (lead, *_) = operation.call, rows
    rows = {name: flat_values(call, name, x, segments) for name, x in rows.items()}
    n, s = rows[lead].shape[0], segments.num_segments
    for name, x in rows.items():
        if x.shape[0] != n:
            raise ValueError(f"{call}: `{name}` must have a row for each of `{lead}`, got shape {x.shape} for {n} rows")
    operation.check_features({name: x.shape[1:] for name, x in rows.items()})
    _check.rows(call, rows[lead], segments)
    extra = _extra(operation, extra, s, rows[lead].shape[1:])
    on_jax = any(isinstance(x, jax.Array) for x in (*rows.values(), *extra.values()))
    if on_jax or _may_close_over(operation) or _check.is_traced(segments.offsets):
        return operation.run(_on_jax(call, rows), operation.plan(segments, n), _on_jax(call, extra), options)
    packed = {name: _host.Arrays.of(x) for name, x in rows.items()}
    capacity = max(p.capacity for p in packed.values())
    offsets = np.asarray(segments.offsets)
    operands = [*rows.values(), *(x for x in extra.values() if not _is_weak(x))]
    with _host.x64(*(x.dtype for x in operands), options.get("dtype") or np.dtype(bool)):
        plan = operation.host_plan(Segments._make(offsets, segments.heads), capacity)
        extra = _in_bucket(operation, extra, plan.num_segments)
        out = operation.on_host({name: p.pack(capacity) for name, p in packed.items()}, plan, extra, None, options)
    return _each(lambda y: y[: n if operation.to_rows else s].copy(), out)
