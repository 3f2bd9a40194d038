"""How machines walk: one module a machine, generic in the algebra.

A kernel module has some of ``scan``, ``reduce`` and ``spread`` with the operands of `segkernels.kernels.xla`, which states what
each must give, and ``unsupported(call) -> str | None``: the reason why it cannot serve a `_select.Call`. It imports no
other machine, and knows nothing of derivatives, batches or input forms.
"""
