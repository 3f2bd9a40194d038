"""How machines walk: one module a machine, generic in the algebra.

A kernel module has some of ``scan``, ``reduce`` and ``spread`` with the operands of `segkernels.kernels.xla`, which
states what each must give, and ``unsupported(verb, monoid, operands, config) -> str | None``: the reason why it cannot
serve a call. It imports no other machine, and knows nothing of derivatives, batches or input forms.
"""
