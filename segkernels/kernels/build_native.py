"""Compiles `native.c`. Needs nothing but a C compiler: the build of the wheel runs this file on its own."""

import os
import pathlib
import shlex
import shutil
import subprocess

SOURCE = pathlib.Path(__file__).with_name("native.c")
FLAGS = ("-std=gnu11", "-O3", "-fno-unswitch-loops", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")


def compiled(library: pathlib.Path, *flags: str) -> str | None:
    """Compile to `library`, with the compiler that ``CC`` names or one on the path; None, or why it failed."""
    library.unlink(missing_ok=True)
    compiler = shlex.split(os.environ.get("CC", "")) or [next(filter(shutil.which, ("cc", "gcc", "clang")), "")]
    if not compiler[0]:
        return "no C compiler found"
    try:
        done = subprocess.run([*compiler, *FLAGS, *flags, SOURCE, "-o", library], capture_output=True, text=True)
    except OSError as error:
        return f"{compiler[0]}: {error}"
    if done.returncode or not library.exists():
        library.unlink(missing_ok=True)
        return f"{compiler[0]} failed: {done.stderr.strip()[-500:]}"
    return None
