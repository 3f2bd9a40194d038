"""Builds the native kernel into the wheel where there is a C compiler; without one the wheel is pure Python."""

import pathlib
import runpy
import sys
import sysconfig

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeKernel(BuildHookInterface):
    def initialize(self, version, build_data):
        del version
        kernels = pathlib.Path(self.root, "segkernels", "kernels")
        library = kernels / "native.shared"
        failure = "it has been tried on Linux alone"
        if sys.platform == "linux":
            failure = runpy.run_path(kernels / "build_native.py")["compiled"](library)
        if failure:
            self.app.display_warning(f"The native kernel is not built: {failure}")
            return
        build_data["artifacts"].append(library.relative_to(self.root).as_posix())
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["pure_python"] = False
