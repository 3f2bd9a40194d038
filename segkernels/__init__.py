"""One operation on each of many arrays of unequal length, in JAX: one kernel, no padding, one compile per bucket."""

from segkernels._config import Config as Config
from segkernels._explain import explain as explain
from segkernels._ragged import Ragged as Ragged
from segkernels._segments import Segments as Segments
from segkernels.compose import segmented_repeat as segmented_repeat
from segkernels.reduce import segmented_sum as segmented_sum
from segkernels.scan import segmented_cumsum as segmented_cumsum

__all__ = ["Config", "Ragged", "Segments", "explain", "segmented_cumsum", "segmented_repeat", "segmented_sum"]
__version__ = "0.1.0"
