package interpreter

import (
	"encoding/base64"
	"strings"
	"testing"
)

// withLibraries runs a test in each kernel of a Python that has pandas and
// matplotlib.
func withLibraries(t *testing.T, test func(*testing.T, *interpreterServer)) {
	t.Run("own", func(t *testing.T) {
		s := newServer(t)
		s.host.python = installed(t) + "/bin/python"
		test(t, s)
	})
	t.Run("jupyter", func(t *testing.T) { test(t, newJupyterServer(t)) })
}

func TestDataFrame(t *testing.T) { withLibraries(t, testDataFrame) }

func testDataFrame(t *testing.T, s *interpreterServer) {
	o := s.run("python", `
import pandas as pd
frame = pd.DataFrame({
    "name": ["é", None],
    "count": [1, 2],
    "share": [0.5, float("nan")],
    "limit": [float("inf"), -1.0],
    "at": [pd.Timestamp("2026-01-02"), pd.Timestamp("2026-01-02T03:04:05")],
    "kind": pd.Categorical(["u", "v"]),
    "late": [pd.NaT, pd.Timedelta(days=1)],
    "whole": pd.array([1, None], dtype="Int64"),
    7: [True, False],
})
frame`)
	equal(t, "errors", o.errors, []object(nil))
	if len(o.results) != 1 || o.main == nil {
		t.Fatalf("results: %v", o.results)
	}
	if html, _ := o.main["html"].(string); !strings.Contains(html, `<table border="1" class="dataframe">`) || !strings.Contains(html, "<td>é</td>") {
		t.Errorf("html %q", html)
	}
	if text, _ := o.main["text"].(string); !strings.Contains(text, "count") || !strings.Contains(text, "share") {
		t.Errorf("text %q", text)
	}
	equal(t, "data", o.main["data"], any(map[string]any{
		"name":  []any{"é", nil},
		"count": []any{1.0, 2.0},
		"share": []any{0.5, nil},
		"limit": []any{nil, -1.0},
		"at":    []any{"2026-01-02T00:00:00", "2026-01-02T03:04:05"},
		"kind":  []any{"u", "v"},
		"late":  []any{nil, "P1DT0H0M0S"},
		"whole": []any{1.0, nil},
		"7":     []any{true, false},
	}))

	o = s.run("python", "display(frame[['count']])\nframe['count'].sum()")
	equal(t, "displayed", []any{len(o.results), o.results[0]["data"], o.results[0]["is_main_result"]},
		[]any{2, map[string]any{"count": []any{1.0, 2.0}}, false})
	equal(t, "value", o.text(), any("np.int64(3)"))
}

func TestCharts(t *testing.T) { withLibraries(t, testCharts) }

func testCharts(t *testing.T, s *interpreterServer) {
	s.run("python", "import datetime\nimport matplotlib.pyplot as plt")
	for _, c := range []struct {
		name, code string
		chart      object
	}{
		{"line", `
plt.plot([1, 2, 3], [4.5, 5, 6], label="up")
plt.plot([1, 2], [3, 1])
plt.title("Lines"); plt.xlabel("Time (s)"); plt.ylabel("Way"); plt.xticks([1, 2, 3]); plt.yticks([0, 5], ["low", "high"])`,
			object{"type": "line", "title": "Lines",
				"x_label": "Time (s)", "x_unit": "s", "x_ticks": []any{1.0, 2.0, 3.0}, "x_tick_labels": []any{"1", "2", "3"}, "x_scale": "linear",
				"y_label": "Way", "y_unit": nil, "y_ticks": []any{0.0, 5.0}, "y_tick_labels": []any{"low", "high"}, "y_scale": "linear",
				"elements": []any{
					map[string]any{"label": "up", "points": []any{[]any{1.0, 4.5}, []any{2.0, 5.0}, []any{3.0, 6.0}}},
					map[string]any{"label": "Line 1", "points": []any{[]any{1.0, 3.0}, []any{2.0, 1.0}}},
				}}},
		{"line over dates", `
days = [datetime.date(2026, 1, d) for d in (1, 2)]
plt.plot(days, [1, 10]); plt.yscale("log"); plt.xticks(days, ["first", "second"]); plt.yticks([1, 10], ["1", "10"])`,
			object{"type": "line", "title": nil,
				"x_label": nil, "x_unit": nil, "x_ticks": []any{"2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"},
				"x_tick_labels": []any{"first", "second"}, "x_scale": "datetime",
				"y_label": nil, "y_unit": nil, "y_ticks": []any{1.0, 10.0}, "y_tick_labels": []any{"1", "10"}, "y_scale": "log",
				"elements": []any{
					map[string]any{"label": "Line 0", "points": []any{[]any{"2026-01-01", 1.0}, []any{"2026-01-02", 10.0}}},
				}}},
		{"scatter", `
plt.scatter([1, 2], [3, 4], label="dots")
plt.title("Dots"); plt.xlabel("X"); plt.ylabel("Y (km/h)"); plt.xticks([1, 2]); plt.yticks([3])`,
			object{"type": "scatter", "title": "Dots",
				"x_label": "X", "x_unit": nil, "x_ticks": []any{1.0, 2.0}, "x_tick_labels": []any{"1", "2"}, "x_scale": "linear",
				"y_label": "Y (km/h)", "y_unit": "km/h", "y_ticks": []any{3.0}, "y_tick_labels": []any{"3"}, "y_scale": "linear",
				"elements": []any{map[string]any{"label": "dots", "points": []any{[]any{1.0, 3.0}, []any{2.0, 4.0}}}}}},
		{"bar", `
plt.bar(["a", "b"], [1, 2], label="one"); plt.bar(["a", "b"], [3, 4.5], bottom=[1, 2], label="two")
plt.title("Bars"); plt.xlabel("Kind"); plt.ylabel("Size (kg)")`,
			object{"type": "bar", "title": "Bars", "x_label": "Kind", "x_unit": nil, "y_label": "Size (kg)", "y_unit": "kg",
				"elements": []any{
					map[string]any{"label": "a", "group": "one", "value": 1.0}, map[string]any{"label": "b", "group": "one", "value": 2.0},
					map[string]any{"label": "a", "group": "two", "value": 3.0}, map[string]any{"label": "b", "group": "two", "value": 4.5},
				}}},
		{"horizontal bars", `plt.barh(["a"], [5]);`,
			object{"type": "bar", "title": nil, "x_label": nil, "x_unit": nil, "y_label": nil, "y_unit": nil,
				"elements": []any{map[string]any{"label": "a", "group": "Group 0", "value": 5.0}}}},
		{"pie", `plt.pie([1, 3], labels=["a", "b"], autopct="%1.0f%%"); plt.title("Pie")`,
			object{"type": "pie", "title": "Pie", "elements": []any{
				map[string]any{"label": "a", "angle": 90.0, "radius": 1.0}, map[string]any{"label": "b", "angle": 270.0, "radius": 1.0},
			}}},
		{"box and whisker", `
plt.boxplot([[1, 2, 3, 4, 20], [2, 3, 4]], tick_labels=["a", "b"])
plt.title("Boxes"); plt.ylabel("Length (mm)")`,
			object{"type": "box_and_whisker", "title": "Boxes", "x_label": nil, "x_unit": nil, "y_label": "Length (mm)", "y_unit": "mm",
				"elements": []any{
					map[string]any{"label": "a", "min": 1.0, "first_quartile": 2.0, "median": 3.0, "third_quartile": 4.0, "max": 4.0, "outliers": []any{20.0}},
					map[string]any{"label": "b", "min": 2.0, "first_quartile": 2.5, "median": 3.0, "third_quartile": 3.5, "max": 4.0, "outliers": []any{}},
				}}},
		{"box and whisker, filled", `
plt.boxplot([[1, 2, 3, 4, 20], [2, 3, 4]], tick_labels=["a", "b"], patch_artist=True);`,
			object{"type": "box_and_whisker", "title": nil, "x_label": nil, "x_unit": nil, "y_label": nil, "y_unit": nil,
				"elements": []any{
					map[string]any{"label": "a", "min": 1.0, "first_quartile": 2.0, "median": 3.0, "third_quartile": 4.0, "max": 4.0, "outliers": []any{20.0}},
					map[string]any{"label": "b", "min": 2.0, "first_quartile": 2.5, "median": 3.0, "third_quartile": 3.5, "max": 4.0, "outliers": []any{}},
				}}},
		{"box and whisker, filled and without outliers", `
plt.boxplot([[1, 2, 3, 4, 20]], tick_labels=["a"], patch_artist=True, notch=True, showfliers=False);`,
			object{"type": "box_and_whisker", "title": nil, "x_label": nil, "x_unit": nil, "y_label": nil, "y_unit": nil,
				"elements": []any{
					map[string]any{"label": "a", "min": 1.0, "first_quartile": 2.0, "median": 3.0, "third_quartile": 4.0, "max": 4.0, "outliers": []any{}},
				}}},
		{"superchart", `
figure, (left, right) = plt.subplots(1, 2)
figure.suptitle("Both"); left.pie([1]); right.bar(["x"], [1], label="g"); right.set_title("Right")`,
			object{"type": "superchart", "title": "Both", "elements": []any{
				map[string]any{"type": "pie", "title": nil, "elements": []any{map[string]any{"label": "", "angle": 360.0, "radius": 1.0}}},
				map[string]any{"type": "bar", "title": "Right", "x_label": nil, "x_unit": nil, "y_label": nil, "y_unit": nil,
					"elements": []any{map[string]any{"label": "x", "group": "g", "value": 1.0}}},
			}}},
		{"unknown", `plt.imshow([[1, 2], [3, 4]]);`,
			object{"type": "unknown", "title": nil, "elements": []any{}}},
	} {
		// It is shown where it is asked for, and at the end of the cell else.
		for _, show := range []string{"\nplt.show()\nprint('after')", "\nprint('after')"} {
			o := s.run("python", c.code+show)
			if len(o.errors) > 0 || len(o.results) != 1 {
				t.Errorf("%s: results %v, errors %v", c.name, o.results, o.errors)
				continue
			}
			r := o.results[0]
			equal(t, c.name+": chart", r["chart"], any(map[string]any(c.chart)))
			equal(t, c.name+": main", r["is_main_result"], any(false))
			text, _ := r["png"].(string)
			if picture, err := base64.StdEncoding.DecodeString(text); err != nil || !strings.HasPrefix(string(picture), "\x89PNG") {
				t.Errorf("%s: png %.20q, %v", c.name, text, err)
			}
			equal(t, c.name+": output", strings.Join(o.stdout, ""), "after\n")
		}
	}
	o := s.run("python", "figure, axes = plt.subplots(); axes.plot([1], [2]); plt.close(figure)\nfigure")
	chart, _ := o.main["chart"].(map[string]any)
	equal(t, "a figure as the value", []any{len(o.results), chart["type"]}, []any{1, "line"})
}

// An image of Pillow is a result where it is shown, or saved under a name, as
// with E2B.
func TestImages(t *testing.T) { withLibraries(t, testImages) }

func testImages(t *testing.T, s *interpreterServer) {
	s.run("python", "from PIL import Image\nimage = Image.new('RGB', (2, 3), 'red')")
	for _, c := range []struct {
		name, code string
		shown      int
	}{
		{"shown", "image.show()", 1},
		{"shown with a title", "image.show(title='red')", 1},
		{"saved under a name", "image.save('red.png')\nassert Image.open('red.png').size == (2, 3)", 1},
		{"saved in another form", "image.save('red.gif')\nassert Image.open('red.gif').format == 'GIF'", 1},
		{"saved to memory", "import io\nfile = io.BytesIO()\nimage.save(file, 'PNG')\nassert file.getvalue()", 0},
		{"a figure that is saved", "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.savefig('figure.png')\nplt.close()", 0},
		{"saved by a process of the cell's", "import os\nif not os.fork():\n    image.save('child.png')\n    os._exit(0)\nos.wait();", 0},
		{"what cannot be saved", "try:\n    image.save('/nowhere/red.png')\nexcept FileNotFoundError:\n    pass", 0},
	} {
		o := s.run("python", c.code)
		if len(o.errors) > 0 || len(o.results) != c.shown || len(o.stderr) > 0 {
			t.Errorf("%s: results %v, errors %v, stderr %q", c.name, o.results, o.errors, o.stderr)
			continue
		}
		for _, r := range o.results {
			text, _ := r["png"].(string)
			if picture, err := base64.StdEncoding.DecodeString(text); err != nil || !strings.HasPrefix(string(picture), "\x89PNG") {
				t.Errorf("%s: png %.20q, %v", c.name, text, err)
			}
			equal(t, c.name+": main", r["is_main_result"], any(false))
		}
	}
}
