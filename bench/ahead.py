"""Compiles for TPUs ahead of time, on a machine without one: needs libtpu (`pip install 'segkernels[tpu]'`), executes nothing."""

import functools
import itertools
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.experimental.layout import Format, Layout

import segkernels
from segkernels import _compat
from segkernels._algebra import ADD, AFFINE, LOGADDEXP, MAX, MIN, MUL
from segkernels.kernels import pallas_tpu, pallas_tpu_reduce, pallas_tpu_scan
from segkernels.kernels.pallas_tpu_fold import Fold

# What libtpu asks of a machine that has no TPU, and that several processes may load it; read when it is loaded.
os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="true", TPU_ACCELERATOR_TYPE="v5litepod-4",
                  TPU_WORKER_HOSTNAMES="localhost")  # fmt: skip

CHIPS = {"v5e": "v5e:2x2", "v6e": "v6e:2x2", "v5p": "v5p:2x2x1", "tpu7x": "tpu7x:2x2x1"}
MONOIDS = {monoid.name: monoid for monoid in (ADD, MUL, MAX, MIN, LOGADDEXP, AFFINE)}
WAYS = {"forward": {}, "exclusive": dict(exclusive=True), "reverse": dict(reverse=True),
        "both": dict(exclusive=True, reverse=True), "reduction": dict(reduces=True)}  # fmt: skip
FACTORS = dict(chip=tuple(CHIPS), monoid=tuple(MONOIDS), dtype=("float32", "bfloat16", "int32", "int16", "int8"),
               f=(1, 128, 200), way=tuple(WAYS))  # fmt: skip


class Variant(NamedTuple):
    """What a TPU kernel does: ``[n, f]`` of a dtype by a monoid, scanned in one of four ways, or reduced."""

    monoid: str
    dtype: str = "float32"
    f: int = 1
    reverse: bool = False
    exclusive: bool = False
    reduces: bool = False

    @property
    def fold(self):
        """How it is folded."""
        monoid = MONOIDS[self.monoid]
        dtypes = (jnp.dtype(self.dtype),) * (2 if monoid is AFFINE else 1)
        return Fold(monoid, self.reverse, self.exclusive, dtypes, interpreted=False)

    def walk(self, n):
        """The walk of `n` rows of it."""
        return pallas_tpu.walk_of(self.fold, n, self.f)

    def whole(self, n, s=1000):
        """A plan and the kernel: a function of bits of heads, what the kernel asks of the layout, and values; and shapes."""
        kernel, (_, *shapes) = self.kernel(n, s)
        bits = jax.ShapeDtypeStruct(((n + 31) // 32,), jnp.uint32)
        return lambda bits, *rest: kernel(pallas_tpu.plan_of(self.walk(n), bits, n), *rest), [bits, *shapes]

    def kernel(self, n, s=1000, **how):
        """The kernel alone: a function of plan, number of live rows (or offsets of `s` segments) and values, and their shapes."""
        walk, shape = self.walk(n), (n,) if self.f == 1 else (n, self.f)
        run = pallas_tpu_reduce.last_rows if self.reduces else pallas_tpu_scan.all_rows

        def call(plan, layout, *values):
            out = run(walk, [x.reshape(n, self.f) for x in values], plan, layout, **how)
            return out if self.reduces else out.reshape(shape)

        values = [jax.ShapeDtypeStruct(shape, self.dtype)] * len(self.fold.dtypes)
        plan = jax.eval_shape(lambda bits: pallas_tpu.plan_of(walk, bits, n), jax.ShapeDtypeStruct(((n + 31) // 32,), jnp.uint32))
        return call, [plan, jax.ShapeDtypeStruct((s + 1,) if self.reduces else (), jnp.int32), *values]


def grid():
    """Every row of `FACTORS` that is an operation of the package."""
    for row in (dict(zip(FACTORS, values)) for values in itertools.product(*FACTORS.values())):
        integers = row["dtype"].startswith("int")
        if not (row["monoid"] == "logaddexp" and integers or row["monoid"] == "affine" and row["way"] == "reduction"):
            yield row


def variant_of(row):
    """The variant of a row of the grid, which names its chip beside it."""
    return Variant(row["monoid"], row["dtype"], row["f"], **WAYS[row["way"]])


# What the TPU kernel does not take, by operation: dtypes of operands, which xla serves.
LEFT = (("segmented_cumsum", "float64"), ("segmented_cumsum", "int64"), ("segmented_cumsum", "complex64"),
        ("segmented_cummax", "uint32"), ("segmented_cumlogsumexp", "float64"), ("segmented_linear_recurrence", "float64"),
        ("segmented_associative_scan", "float32"), ("segmented_sum", "float64"), ("segmented_softmax", "float64"))  # fmt: skip


def left(operation, dtype, n):
    """An operation of the package from traced offsets on, and the shapes of its operands."""
    operands = dict(segmented_linear_recurrence=2).get(operation, 1)
    function = getattr(segkernels, operation)
    if operation == "segmented_associative_scan":
        function = functools.partial(function, jnp.multiply)
    shapes = [jax.ShapeDtypeStruct((1001,), jnp.int32)] + [jax.ShapeDtypeStruct((n,), dtype)] * operands
    return lambda offsets, *x: function(*x, segkernels.Segments.from_offsets(offsets)), shapes


@functools.cache
def _device(chip):
    return topologies.get_topology_desc(topology_name=CHIPS[chip], platform="tpu").devices[0]


def lowered(function, avals, chip):
    """A function lowered for one core of a chip, all arrays row by row as kernels take them."""
    device = _device(chip)
    about = jax.sharding.AbstractDevice(device_kind=device.device_kind, num_cores=device.num_cores, platform="tpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), abstract_device=about)
    here = _compat.sharding_on(device)
    by_rows = lambda aval: Format(Layout(tuple(range(len(aval.shape)))), here)
    with jax.sharding.use_abstract_mesh(mesh):
        out = jax.tree.map(by_rows, jax.eval_shape(function, *avals))
        jitted = jax.jit(function, in_shardings=tuple(map(by_rows, avals)), out_shardings=out)
        return jitted.trace(*avals).lower(lowering_platforms=("tpu",))
