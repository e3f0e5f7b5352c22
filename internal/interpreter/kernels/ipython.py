# Has IPython show data frames, figures and images as our own kernel does.
# charts.py and modules.py are put before it.

import _thread
import codecs
import secrets
import threading

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


class Pipe:
    """What child processes write to one of the streams. ipykernel has a pipe for them,
    and a thread that brings what is in it, which can be after the cell has ended: then
    the next one has it. This thread in its place knows a mark that is sent through the
    pipe at the end of a cell: all that was written before has come when that does."""

    PATIENCE = 1  # second; a process in the background may write without end

    def __init__(self, stream):
        self.stream = stream
        self.reads, self.writes, self.log = stream._fid, stream._original_stdstream_fd, stream._original_stdstream_copy
        self.mark = b"\0drowse " + secrets.token_hex(16).encode() + b"\n"
        self.owed, self.come = 0, threading.Semaphore(0)
        stream._should_watch = False
        os.write(self.writes, b"\0")  # it looks after it has read
        stream.watch_fd_thread.join()
        # ipykernel would give what a threading.Thread writes to the cell that began it.
        _thread.start_new_thread(self.bring, ())

    def bring(self):
        decoder, kept = codecs.getincrementaldecoder("utf-8")("replace"), b""
        while data := os.read(self.reads, 1 << 16):
            *before, rest = (kept + data).split(self.mark)
            begun = rest.rfind(b"\0")  # the mark has one, at its beginning
            if begun < 0 or not self.mark.startswith(rest[begun:]):
                begun = len(rest)
            said, kept = b"".join((*before, rest[:begun])), rest[begun:]
            if text := decoder.decode(said):
                self.stream.write(text)
                os.write(self.log, said)
            for _ in before:
                self.come.release()

    def wait(self):
        writes, reads = os.fstat(self.writes), os.fstat(self.reads)
        if (writes.st_dev, writes.st_ino) != (reads.st_dev, reads.st_ino):
            return  # the cell has put something else there
        os.write(self.writes, self.mark)
        self.owed += 1
        while self.owed and self.come.acquire(timeout=self.PATIENCE):
            self.owed -= 1


def pipes():
    """Those of the streams, where ipykernel has what it is known to have."""
    found = []
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream._should_watch and stream.watch_fd_thread.is_alive():
                found.append(Pipe(stream))
        except AttributeError:
            pass
    return found


PIPES = pipes()


def settle():
    for pipe in PIPES:
        try:
            pipe.wait()
        except OSError:
            pass  # the cell has closed it


get_ipython().events.register("post_execute", settle)
teach(get_ipython().display_formatter)
sys.meta_path.insert(0, Adapter())
for name in ADAPTED:
    if name in sys.modules:
        ADAPTED[name](sys.modules[name])
