"""Which machine serves, what an explicit choice may do, and what `explain` says."""

import re
import types

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk
from segkernels import _select
from segkernels._algebra import ADD, MAX

X, SEGMENTS = jnp.ones(8), sk.Segments.from_lengths([3, 5])


def call(verb="scan"):
    return _select.Call(verb, ADD, (jax.core.ShapedArray((8, 1), jnp.float32),), _select.Choice("test", sk.Config()))


@pytest.mark.parametrize(
    ("platform", "walk"), [("cpu", "loop"), ("tpu", None), ("cuda", "associative"), ("rocm", "associative")]
)
@pytest.mark.parametrize("verb", ["scan", "reduce", "spread"])
def test_automatic_choice(verb, platform, walk):
    machine, config = _select.choose(call(verb), platform)
    if platform == "tpu":
        name = "pallas_tpu"
    elif platform == "cpu" and cases.NATIVE and verb != "spread":
        name, walk = "native", None
    else:
        name = "xla"
    assert (machine.name, config.walk) == (name, walk)


@pytest.mark.parametrize(("dtype", "monoid", "rows", "reason"), [
    ("float64", ADD, 8, "it takes float32, bfloat16, .* not float64"), ("int64", ADD, 8, "not int64"),
    ("complex64", ADD, 8, "not complex64"), ("uint32", MAX, 8, "it does not order uint32"),
    ("float32", ADD, 1 << 30, "it numbers rows in 32 bits"),
])  # fmt: skip
def test_what_the_tpu_kernel_leaves_to_xla(dtype, monoid, rows, reason):
    aval = jax.core.ShapedArray((rows, 1), np.dtype(dtype))
    asked = _select.Call("scan", monoid, (aval,), _select.Choice("test", sk.Config()))
    machine, config = _select.choose(asked, "tpu")
    assert (machine.name, config.walk) == ("xla", "associative")
    assert re.search(reason, "\n".join(_select.explanation(asked, "tpu")))


def test_chips_with_little_memory_are_left_to_xla(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    for kind, name in (("TPU v4", "xla"), ("TPU v5 lite", "pallas_tpu"), ("TPU v6 lite", "pallas_tpu")):
        monkeypatch.setattr(jax, "devices", lambda kind=kind: [types.SimpleNamespace(device_kind=kind)])
        assert _select.choose(call(), "tpu")[0].name == name


@pytest.mark.parametrize("name", ["pallas_tpu", "pallas_gpu"])
def test_an_explicit_choice_is_refused_with_the_reason(name):
    for run in (lambda: sk.segmented_cumsum(X, SEGMENTS, implementation=name),
                lambda: sk.segmented_sum(np.ones(8), SEGMENTS, implementation=name),
                lambda: jax.jit(lambda x: sk.segmented_cumsum(x, SEGMENTS, implementation=name))(X)):  # fmt: skip
        with pytest.raises(
            ValueError, match=f"segmented_.*: `implementation` '{name}' cannot serve .* add of float.*(runs on|no such kernel)"
        ):
            run()


def test_an_explicit_choice_is_served():
    for implementation in ("xla", sk.Config("xla"), *map(cases.config, ("loop", "associative"))):
        assert sk.segmented_cumsum(X, SEGMENTS, implementation=implementation)[-1] == 5
    lowered = jax.jit(lambda x: sk.segmented_cumsum(x, SEGMENTS, implementation=cases.config("loop"))).lower(X).as_text()
    other = jax.jit(lambda x: sk.segmented_cumsum(x, SEGMENTS, implementation=cases.config("associative"))).lower(X).as_text()
    assert lowered != other and "dynamic_update_slice" in lowered


def test_a_walk_of_reductions_does_not_scan():
    with pytest.raises(ValueError, match="its walks for this are loop and associative, not segment_sum"):
        sk.segmented_cumsum(X, SEGMENTS, implementation=sk.Config(walk="segment_sum"))


def test_verbs_of_derivatives_use_the_choice_where_it_is_served():
    config = sk.Config(walk="segment_sum")  # spread, the transpose, has no such walk
    gradient = jax.grad(lambda x: jnp.sum(sk.segmented_sum(x, SEGMENTS, implementation=config)))(X)
    np.testing.assert_array_equal(gradient, 1)
    traced = str(jax.make_jaxpr(jax.grad(lambda x: sk.segmented_cumsum(x, SEGMENTS, implementation="xla")[3]))(X))
    assert "strict=False" in traced


@pytest.mark.parametrize("op", cases.OPS, ids=lambda op: op.name)
def test_explain_names_every_machine(op, capsys, rng):
    operands = [jnp.asarray(x) for x in op.draw(rng, "float32", (2 if op.kind == "spread" else 8,))]
    for platform in ("cpu", "tpu", "gpu", "cuda", "rocm") if op.broad else ("cpu",):
        op.call(lambda *x, p=platform, **options: sk.explain(op.function, *x, platform=p, **options), operands, SEGMENTS)
        title, *lines = capsys.readouterr().out.splitlines()
        assert title == f"{op.name} on {platform.replace('gpu', 'cuda')}"
        if op.name in cases.PLAIN:
            assert lines == ["  plain JAX, with no kernel of ours"]
            continue
        while lines:
            chosen, *others = lines[:4]
            machine = chosen.split(": ")[1].split(",")[0]
            serve = {"cpu": ("xla", *cases.NATIVE), "tpu": ("pallas_tpu",)}
            assert machine in serve.get(platform, ("xla",))
            assert {line.split(":")[0].split()[1] for line in others} == set(_select.NAMES) - {machine}
            assert all(line.startswith("    not ") and len(line.split(": ", 1)[1]) > 10 for line in others)
            lines = lines[4:]


def test_explain_takes_what_the_call_takes(capsys):
    sk.explain(sk.segmented_cumsum, [np.array([2**40])], exclusive=True)
    assert "int64[128,1]" in capsys.readouterr().out
    sk.explain(sk.segmented_cumsum, sk.Ragged.from_arrays([np.ones(300)]))
    assert "float32[320,1]" in capsys.readouterr().out
    sk.explain(lambda x, s: jax.grad(lambda x: jnp.sum(sk.segmented_sum(x, s) ** 2))(x), X, SEGMENTS)
    text = capsys.readouterr().out
    assert "reduce add of float32[8,1]: " in text and "spread of float32[2,1]: xla" in text
    sk.explain(sk.segmented_cumsum, x=[np.ones(300, np.float32)], dtype=np.float64)
    assert "float64[320,1]" in capsys.readouterr().out
    sk.explain(sk.segmented_repeat, [1, 2], SEGMENTS)
    assert "spread of int" in capsys.readouterr().out
    with pytest.raises(ValueError, match="'pallas_gpu' cannot serve"):
        sk.explain(sk.segmented_cumsum, X, SEGMENTS, implementation="pallas_gpu")
    with pytest.raises(ValueError, match="explain: `platform` must be one of"):
        sk.explain(sk.segmented_cumsum, X, SEGMENTS, platform="quantum")
