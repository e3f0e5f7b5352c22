"""What E2B's clients get of a data frame of pandas, and of a figure of
matplotlib, besides its picture."""

import re
import sys


def is_of(value, module, name):
    """Whether a value is of a class whose module may not be loaded."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def plain(value):
    """A value as JSON has it."""
    if type(value).__name__ in ("NaTType", "NAType"):  # what pandas has for None
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def frame_data(frame):
    """The columns of a frame, by name."""
    columns = frame.to_dict(orient="list")
    return {str(name): [plain(v) for v in values] for name, values in columns.items()}


def figure_chart(figure):
    """The data of a figure; None if it shows none, or what was not thought of."""
    try:
        return chart_of(figure)
    except Exception:
        return None


def chart_of(figure):
    charts = [axes_chart(axes) for axes in figure.axes]
    charts = [chart for chart in charts if chart]
    if len(charts) == 1:
        return charts[0]
    if charts:
        title = figure._suptitle.get_text() if figure._suptitle else None
        return {"type": "superchart", "title": title, "elements": charts}
    return None


def axes_chart(axes):
    for kind, elements in (
        ("pie", pie_elements),
        ("box_and_whisker", box_elements),
        ("bar", bar_elements),
        ("line", line_elements),
        ("scatter", scatter_elements),
    ):
        found = elements(axes)
        if found:
            break
    else:
        if not axes.has_data():
            return None
        kind, found = "unknown", []
    chart = {"type": kind, "title": axes.get_title() or None, "elements": found}
    if kind not in ("pie", "unknown"):
        chart.update(labels(axes))
    if kind in ("line", "scatter"):
        chart.update(ticks(axes, "x"))
        chart.update(ticks(axes, "y"))
    return chart


def labels(axes):
    found = {}
    for name, text in (("x", axes.get_xlabel()), ("y", axes.get_ylabel())):
        unit = re.search(r"\(([^()]*)\)\s*$", text)
        found[f"{name}_label"] = text or None
        found[f"{name}_unit"] = unit.group(1) if unit else None
    return found


def is_a(axis, kind):
    """Whether matplotlib converts what is on the axis by this kind of class."""
    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    return kind in type(converter).__name__


def scale(axis):
    if is_a(axis, "Date"):
        return "datetime"
    return "categorical" if is_a(axis, "Category") else axis.get_scale()


def ticks(axes, name):
    axis = getattr(axes, name + "axis")
    places = [on_axis(axis, v) for v in axis.get_majorticklocs()]
    return {
        f"{name}_ticks": places,
        f"{name}_tick_labels": [t.get_text() for t in axis.get_majorticklabels()],
        f"{name}_scale": scale(axis),
    }


def on_axis(axis, value):
    """A coordinate as the user gave it."""
    if is_a(axis, "Date") and isinstance(plain(value), (int, float)):
        from matplotlib.dates import num2date

        return num2date(value).isoformat()
    return plain(value)


def points(axes, xs, ys):
    return [[on_axis(axes.xaxis, x), on_axis(axes.yaxis, y)] for x, y in zip(xs, ys)]


def own_label(artist, number):
    label = str(artist.get_label())
    return f"Line {number}" if label.startswith("_") else label


def line_elements(axes):
    return [
        {"label": own_label(line, n), "points": points(axes, line.get_xdata(orig=True), line.get_ydata(orig=True))}
        for n, line in enumerate(axes.get_lines())
        if len(line.get_xdata())
    ]


def scatter_elements(axes):
    return [
        {"label": own_label(dots, n), "points": points(axes, *dots.get_offsets().T)}
        for n, dots in enumerate(axes.collections)
        if type(dots).__name__ == "PathCollection"
    ]


def pie_elements(axes):
    return [
        {"label": wedge.get_label(), "angle": plain(abs(wedge.theta2 - wedge.theta1)), "radius": plain(wedge.r)}
        for wedge in axes.patches
        if type(wedge).__name__ == "Wedge"
    ]


def bar_elements(axes):
    found = []
    for n, container in enumerate(axes.containers):
        if type(container).__name__ != "BarContainer":
            continue
        group = str(container.get_label())
        group = f"Group {n}" if group.startswith("_") else group
        across = getattr(container, "orientation", "vertical") == "horizontal"
        axis = axes.yaxis if across else axes.xaxis
        names = {plain(at): t.get_text() for at, t in zip(axis.get_majorticklocs(), axis.get_majorticklabels())}
        for bar in container.patches:
            middle = bar.get_y() + bar.get_height() / 2 if across else bar.get_x() + bar.get_width() / 2
            value = bar.get_width() if across else bar.get_height()
            label = names.get(plain(middle)) or str(on_axis(axis, middle))
            found.append({"label": label, "group": group, "value": plain(value)})
    return found


def box_elements(axes):
    """The boxes of boxplot(), which are nothing but lines in a known order:
    box (with patch_artist a patch), two whiskers, two caps, median, outliers."""
    lines = axes.get_lines()
    names, found = [t.get_text() for t in axes.get_xticklabels()], []
    for quartiles, rest in drawn_boxes(lines) or filled_boxes(axes.patches, lines):
        caps, median = rest[2:4], rest[4]
        fliers = rest[5].get_ydata() if len(rest) > 5 and rest[5].get_linestyle() == "None" else []
        ends = sorted(plain(cap.get_ydata()[0]) for cap in caps)
        found.append({
            "label": names[len(found)] if len(found) < len(names) else "",
            "min": ends[0],
            "first_quartile": plain(min(quartiles)),
            "median": plain(median.get_ydata()[0]),
            "third_quartile": plain(max(quartiles)),
            "max": ends[1],
            "outliers": [plain(v) for v in fliers],
        })
    return found


def drawn_boxes(lines):
    """The quartiles of boxes that are lines, each with the lines after it."""
    found = []
    for n, box in enumerate(lines[: len(lines) - 5]):
        xs, ys = box.get_xdata(), box.get_ydata()
        if len(xs) == 5 and xs[0] == xs[4] and ys[0] == ys[4]:
            found.append((ys, lines[n + 1 :]))
    return found


def filled_boxes(patches, lines):
    """The quartiles of boxes that are patches, each with its lines: all have the
    same number, and they are drawn box by box."""
    boxes = [patch.get_path().vertices[:, 1] for patch in patches if type(patch).__name__ == "PathPatch"]
    each, odd = divmod(len(lines), len(boxes) or 1)
    if odd or each < 5:
        return []
    found = []
    for n, ys in enumerate(boxes):
        rest = lines[n * each : (n + 1) * each]
        # The outline is closed. That of a box with a notch reaches beyond the
        # quartiles where the notch is wide.
        corner = {6: 2, 12: 5}.get(len(ys))
        if corner is None or any(len(line.get_ydata()) != 2 for line in rest[:5]):
            return []  # something else
        found.append(((ys[0], ys[corner]), rest))
    return found
