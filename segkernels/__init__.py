"""One operation on each of many arrays of unequal length, in JAX: one kernel, no padding, one compile per bucket."""

from segkernels import _rules as _rules  # gives the verbs their derivatives
from segkernels._config import Config as Config
from segkernels._explain import explain as explain
from segkernels._ragged import Ragged as Ragged
from segkernels._segments import Segments as Segments
from segkernels.associative import segmented_associative_scan as segmented_associative_scan
from segkernels.compose import segmented_argsort as segmented_argsort
from segkernels.compose import segmented_log_softmax as segmented_log_softmax
from segkernels.compose import segmented_repeat as segmented_repeat
from segkernels.compose import segmented_softmax as segmented_softmax
from segkernels.compose import segmented_sort as segmented_sort
from segkernels.compose import segmented_standardize as segmented_standardize
from segkernels.locate import segmented_argmax as segmented_argmax
from segkernels.locate import segmented_argmin as segmented_argmin
from segkernels.locate import segmented_first as segmented_first
from segkernels.locate import segmented_last as segmented_last
from segkernels.reduce import segmented_all as segmented_all
from segkernels.reduce import segmented_any as segmented_any
from segkernels.reduce import segmented_logsumexp as segmented_logsumexp
from segkernels.reduce import segmented_max as segmented_max
from segkernels.reduce import segmented_mean as segmented_mean
from segkernels.reduce import segmented_min as segmented_min
from segkernels.reduce import segmented_prod as segmented_prod
from segkernels.reduce import segmented_sum as segmented_sum
from segkernels.reduce import segmented_var as segmented_var
from segkernels.scan import segmented_cumlogsumexp as segmented_cumlogsumexp
from segkernels.scan import segmented_cummax as segmented_cummax
from segkernels.scan import segmented_cummin as segmented_cummin
from segkernels.scan import segmented_cumprod as segmented_cumprod
from segkernels.scan import segmented_cumsum as segmented_cumsum
from segkernels.scan import segmented_fill_forward as segmented_fill_forward
from segkernels.scan import segmented_linear_recurrence as segmented_linear_recurrence

__all__ = [
    "Config",
    "Ragged",
    "Segments",
    "explain",
    "segmented_all",
    "segmented_any",
    "segmented_argmax",
    "segmented_argmin",
    "segmented_argsort",
    "segmented_associative_scan",
    "segmented_cumlogsumexp",
    "segmented_cummax",
    "segmented_cummin",
    "segmented_cumprod",
    "segmented_cumsum",
    "segmented_fill_forward",
    "segmented_first",
    "segmented_last",
    "segmented_linear_recurrence",
    "segmented_log_softmax",
    "segmented_logsumexp",
    "segmented_max",
    "segmented_mean",
    "segmented_min",
    "segmented_prod",
    "segmented_repeat",
    "segmented_softmax",
    "segmented_sort",
    "segmented_standardize",
    "segmented_sum",
    "segmented_var",
]
__version__ = "0.1.0"
