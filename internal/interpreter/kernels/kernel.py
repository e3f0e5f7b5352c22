"""The Python kernel: runs cells of code that come over descriptor 3, one JSON
object a line, and tells what they do over descriptor 4 in the same way. What
they print goes to where their child processes print, so it is in order.
charts.py, modules.py and reseed.py are put before it."""

import ast
import asyncio
import base64
import builtins
import inspect
import io
import json
import linecache
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
import types

MAX_MESSAGE = 12 << 20  # bytes

_requests = os.fdopen(3, "rb")
_lock = threading.Lock()  # over one message
for _fd in (3, 4, 5):
    os.set_inheritable(_fd, False)


def send(**message):
    data = json.dumps(message, default=str).encode() + b"\n"
    if len(data) > MAX_MESSAGE:
        raise ValueError(f"a result of {len(data)} bytes is too large: the limit is {MAX_MESSAGE}")
    with _lock:
        while data:
            data = data[os.write(4, data):]
        if message["type"] == "result":
            # Descriptor 5 says that it has been taken: only then what is
            # printed next comes after it.
            os.read(5, 1)


class Output(io.TextIOWrapper):
    """What replaces sys.stdout and sys.stderr: whole lines are written at once,
    all those of one print together."""

    def __init__(self, fd):
        raw = io.FileIO(fd, "wb", closefd=False)
        super().__init__(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace")

    def write(self, text):
        count = super().write(text)
        if text.endswith("\n"):
            self.flush()
        return count


def flush():
    sys.stdout.flush()
    sys.stderr.flush()


# --- what a value looks like


def encoded(data):
    return base64.b64encode(data).decode() if isinstance(data, (bytes, bytearray)) else data


REPRS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_",
    "text/latex": "_repr_latex_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
}


def call_repr(value, name, *args, **kwargs):
    """The value's own representation, None without one. One that fails is
    reported, and the others are shown all the same."""
    if isinstance(value, type) or not callable(getattr(type(value), name, None)):
        return None
    try:
        found = getattr(value, name)(*args, **kwargs)
    except Exception:
        traceback.print_exc()
        return None
    # A second element is metadata, which nobody here shows.
    return found[0] if isinstance(found, tuple) and found else found


def bundle(value):
    """The representations of a value by MIME type."""
    data = dict(call_repr(value, "_repr_mimebundle_", include=None, exclude=None) or {})
    for mime, name in REPRS.items():
        if mime not in data:
            found = call_repr(value, name)
            if found is not None:
                data[mime] = found
    for kind, extend in EXTENSIONS:
        if is_of(value, *kind):
            extend(value, data)
    if "text/plain" not in data:
        data["text/plain"] = repr(value)
    return {mime: encoded(shown) for mime, shown in data.items()}


def extend_frame(frame, data):
    data["e2b/data"] = frame_data(frame)


def extend_figure(figure, data):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", dpi=figure.dpi)
    data["image/png"] = buffer.getvalue()
    chart = figure_chart(figure)
    if chart:
        data["e2b/chart"] = chart


EXTENSIONS = [
    (("pandas", "DataFrame"), extend_frame),
    (("matplotlib.figure", "Figure"), extend_figure),
]


def display(*values, raw=False, **_):
    """Shows values in the middle of a cell."""
    for value in values:
        flush()
        send(type="result", main=False, data=value if raw else bundle(value))


# --- figures


def show_figures(*_, **__):
    """Shows the open figures and closes them, as a notebook does."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not hasattr(pyplot, "get_fignums"):
        return
    try:
        for number in pyplot.get_fignums():
            display(pyplot.figure(number))
    finally:
        pyplot.close("all")


# --- libraries that must be told where they are


def adapt_pyplot(module):
    module.show = show_figures


def adapt_ipython(module):
    module.display = display


ADAPTED.update({"matplotlib.pyplot": adapt_pyplot, "IPython.core.display_functions": adapt_ipython})


class NoIPython(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """What code written for a notebook imports of IPython, where that is not
    installed: display, and no shell. It is asked last."""

    def find_spec(self, name, path, target=None):
        if name not in ("IPython", "IPython.display"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=name == "IPython")

    def exec_module(self, module):
        if module.__name__ == "IPython.display":
            module.display = display
            return
        # matplotlib asks for the version, and then for the shell.
        module.version_info, module.get_ipython = (0, 0, 0, ""), lambda: None
        importlib.import_module("IPython.display")


# --- lines that are not Python


class UsageError(Exception):
    pass


def shell(command):
    flush()
    status = subprocess.call(["bash", "-c", command], stdin=subprocess.DEVNULL)
    user.__dict__["_exit_code"] = status


def shell_lines(command):
    flush()
    done = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    user.__dict__["_exit_code"] = done.returncode
    return done.stdout.decode("utf-8", "replace").splitlines()


def magic(line):
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name == "pip":
        return shell(f"{sys.executable} -m pip {rest}")
    if name == "cd":
        os.chdir(os.path.expanduser(rest or "~"))
        return print(os.getcwd())
    if name == "pwd":
        return os.getcwd()
    if name == "matplotlib":
        return None
    if name == "env" and not rest:
        return dict(os.environ)
    if name == "env":
        key, is_set, value = (part.strip() for part in rest.partition("=" if "=" in rest else " "))
        if not is_set and not value:
            return os.environ.get(key)
        os.environ[key] = value
        return print(f"env: {key}={value}")
    raise UsageError(f"the magic %{name} is not supported here: there are !command, %cd, %env, %pip and %pwd")


MAGIC = re.compile(r"^(\s*)(?:([A-Za-z_]\w*)\s*=\s*)?([!%])(.*)$")


def translate(source):
    """Makes calls of the lines that begin with ! or %."""

    def line(text):
        found = MAGIC.match(text)
        if not found:
            return text
        indent, name, sign, rest = found.groups()
        if sign == "!":
            call = "__drowse_shell_lines" if name else "__drowse_shell"
        else:
            call = "__drowse_magic"
        return f"{indent}{name + ' = ' if name else ''}{call}({rest.strip()!r})"

    if source.lstrip().startswith("%%"):
        head = source.lstrip().split(None, 1)[0]
        if head not in ("%%bash", "%%sh", "%%time"):
            raise UsageError(f"the magic {head} is not supported here: there are %%bash and %%sh")
        _, _, rest = source.lstrip().partition("\n")
        return rest if head == "%%time" else f"__drowse_shell({rest!r})"
    return "\n".join(line(text) for text in source.split("\n"))


def dedent(source):
    """Takes the indentation of the first line that is not empty from all lines
    that have it, as IPython does: whoever sends a cell may indent all of it."""
    lines = source.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    return "\n".join(line.removeprefix(indent) for line in lines) if indent else source


def parse(source, name):
    try:
        return compile(source, name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        if not re.search(r"^\s*(?:[A-Za-z_]\w*\s*=\s*)?[!%]", source, re.M):
            raise
        source = translate(source)
        return compile(source, name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


# --- running


class StdinNotImplementedError(RuntimeError):
    pass


def no_input(*_):
    raise StdinNotImplementedError("input() is not supported here: nobody is there to answer")


user = types.ModuleType("__main__")
loop = None


def run_code(code):
    """Runs code of the user, on the event loop if there is an await in it."""
    global loop
    value = eval(code, user.__dict__)
    if not (code.co_flags & inspect.CO_COROUTINE):
        return value
    if loop is None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
    task = loop.create_task(value)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        if not task.done():  # interrupted
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
        raise


def run_cell(source, count):
    name = f"Cell In[{count}]"
    source = dedent(source)
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = parse(source, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    if tree.body:
        run_code(compile(tree, name, "exec", flags))
    if last is None:
        return
    value = run_code(compile(last, name, "eval", flags))
    if value is not None:
        user.__dict__["_"] = value
        data = bundle(value)
        flush()
        send(type="result", main=True, data=data)


def without_our_frames(shown):
    """Takes the kernel's frames out of an error that is to be shown, and out of
    those that led to it."""
    while shown is not None:
        frames = [frame for frame in shown.stack if frame.filename != __file__]
        shown.stack = traceback.StackSummary.from_list(frames)
        shown = shown.__cause__ or shown.__context__


def report(error):
    kind = type(error)
    try:
        value = str(error)
    except Exception:
        value = f"<str() of the {kind.__name__} fails>"
    shown = traceback.TracebackException.from_exception(error)
    without_our_frames(shown)
    text = "".join(shown.format()).rstrip("\n")
    send(type="error", name=kind.__name__, value=value, traceback=text)


running = False


def interrupted(_signal, _frame):
    if running:
        raise KeyboardInterrupt


def set_environment(variables):
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def serve(request):
    global running
    if request["reseed"]:
        reseed()
    set_environment(request["env"])
    try:
        try:
            running = True
            run_cell(request["code"], request["count"])
            show_figures()
        finally:
            running = False
    except BaseException as error:
        flush()
        report(error)
    flush()
    set_environment(request["restore"])
    send(type="done")


def main():
    sys.stdout, sys.stderr = Output(1), Output(2)
    sys.path[0] = ""
    sys.argv = [""]
    sys.modules["__main__"] = user
    user.__dict__.update(
        __builtins__=builtins,
        __drowse_shell=shell,
        __drowse_shell_lines=shell_lines,
        __drowse_magic=magic,
    )
    builtins.display, builtins.input = display, no_input
    os.environ.setdefault("MPLBACKEND", "agg")
    sys.meta_path.insert(0, Adapter())
    sys.meta_path.append(NoIPython())
    signal.signal(signal.SIGINT, interrupted)
    send(type="ready")
    for line in _requests:
        serve(json.loads(line))


main()
