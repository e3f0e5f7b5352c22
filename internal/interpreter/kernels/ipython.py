# Has IPython show data frames, figures and images as our own kernel does.
# charts.py and modules.py are put before it.

from IPython import get_ipython
from IPython.core.formatters import BaseFormatter, catch_format_error
from IPython.display import display
from traitlets import ObjectName, Unicode


# The classes are not registered: matplotlib's integration takes all formatters
# of its figures away.
class DataFormatter(BaseFormatter):
    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = dict

    @catch_format_error
    def __call__(self, value):
        return frame_data(value) if is_of(value, "pandas", "DataFrame") else super().__call__(value)


class ChartFormatter(BaseFormatter):
    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = dict

    @catch_format_error
    def __call__(self, value):
        return figure_chart(value) if is_of(value, "matplotlib.figure", "Figure") else super().__call__(value)


def teach(formatter):
    for kind in (DataFormatter, ChartFormatter):
        made = kind(parent=formatter)
        formatter.formatters[made.format_type] = made


teach(get_ipython().display_formatter)
sys.meta_path.insert(0, Adapter())
for name in ADAPTED:
    if name in sys.modules:
        ADAPTED[name](sys.modules[name])
