package ui

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// at is a sample some seconds after noon.
func at(seconds float64, memory int64) sample {
	return sample{At: noon.Add(time.Duration(seconds * float64(time.Second))), CPUs: 2, CPU: 50, Memory: memory << 20, MemoryMax: 1 << 30, Disk: 5 << 20, DiskMax: 10 << 30}
}

func slept(from, until float64) spell {
	return spell{lifeChange{Time: at(from, 0).At, To: "paused"}, at(until, 0).At}
}

func texts(ticks []tick) string {
	var all []string
	for _, t := range ticks {
		all = append(all, t.Text+"@"+t.At)
	}
	return strings.Join(all, " ")
}

// TestTicksOfValues: they are round, few, and go up to what there is.
func TestTicksOfValues(t *testing.T) {
	for _, c := range []struct {
		scale scale
		most  float64
		want  string
	}{
		{percents, 0, "0% 1%"}, {percents, 0.4, "0% 1%"}, {percents, 3.2, "0% 1% 2% 3% 4%"}, {percents, 17, "0% 5% 10% 15% 20%"},
		{percents, 33, "0% 10% 20% 30% 40%"}, {percents, 100, "0% 50% 100%"},
		{bytesUsed, 0, "0 B 1 KiB"}, {bytesUsed, 5000, "0 B 2 KiB 4 KiB 6 KiB"}, {bytesUsed, 212 << 20, "0 B 64 MiB 128 MiB 192 MiB 256 MiB"},
		{bytesUsed, 1 << 30, "0 B 256 MiB 512 MiB 768 MiB 1 GiB"}, {bytesUsed, 1.2 * (1 << 30), "0 B 512 MiB 1 GiB 1.5 GiB"}, {bytesUsed, 10 << 30, "0 B 4 GiB 8 GiB 12 GiB"},
	} {
		var got []string
		for _, v := range c.scale.ticks(c.most) {
			got = append(got, c.scale.text(v))
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("up to %v: %s, want %s", c.most, text, c.want)
		}
	}
	for step, n := 1.0, 0; n < 20; step, n = percents.next(step), n+1 {
		if text := fmt.Sprint(step); !strings.ContainsAny(text[:1], "125") {
			t.Errorf("a step of %v", step)
		}
	}
}

// TestTicksOfTimes: they are round too, and few, however long the time is.
func TestTicksOfTimes(t *testing.T) {
	for span, want := range map[time.Duration]string{
		time.Minute:                  "12:00:00 12:00:30 12:01:00",
		7 * time.Minute:              "12:00 12:02 12:04 12:06",
		100 * time.Minute:            "12:00 12:30 13:00 13:30",
		20 * time.Hour:               "12:00 18:00 Nov 29 06:00",
		3*24*time.Hour + time.Hour:   "Nov 29 Nov 30 Dec 1",
		30 * 24 * time.Hour:          "Dec 3 Dec 11 Dec 19 Dec 27",
		290 * 365 * 24 * time.Hour:   "",
		time.Duration(math.MaxInt64): "",
	} {
		var got []string
		for _, tick := range timeTicks(noon, noon.Add(span)) {
			got = append(got, tick.text)
		}
		if text := strings.Join(got, " "); len(got) > 5 || want != "" && text != want {
			t.Errorf("of %s: %s, want %s", span, text, want)
		}
	}
	if got := timeTicks(time.Time{}, noon); len(got) == 0 || len(got) > 100 {
		t.Errorf("%d ticks of two thousand years", len(got))
	}
}

// TestUse: lines are parted by sleeps and by nothing else, and everything is in the chart.
func TestUse(t *testing.T) {
	minutes := []sample{at(0, 100), at(60, 200), at(120, 300), at(180, 250), at(240, 50)}
	for _, c := range []struct {
		name   string
		all    []sample
		sleeps []spell
		lines  []string // of the memory, without heights
		bands  []band
	}{
		{"awake", minutes, nil, []string{"0 250 500 750 1000"}, nil},
		{"a sleep", minutes, []spell{slept(70, 100)}, []string{"0 250", "500 750 1000"}, []band{{"29.2", "12.5"}}},
		{"a sleep shorter than any pixel", minutes, []spell{slept(61, 61.001)}, []string{"0 250", "500 750 1000"}, []band{{"25.4", "0"}}},
		{"two sleeps around one sample", minutes, []spell{slept(70, 100), slept(130, 150)}, []string{"0 250", "500 500", "750 1000"}, []band{{"29.2", "12.5"}, {"54.2", "8.3"}}},
		{"sleeps before and after", minutes, []spell{slept(-500, -10), slept(241, 900)}, []string{"0 250 500 750 1000"}, nil},
		{"a sleep that began before", minutes[1:], []spell{slept(0, 61)}, []string{"0", "333.3 666.7 1000"}, []band{{"0", "0.6"}}},
		{"one sample", minutes[:1], nil, []string{"1000 1000"}, nil},
		{"the clock was set back", []sample{at(0, 1), at(600, 2), at(660, 3), at(60, 4), at(120, 5)}, nil, []string{"0 500 1000"}, nil},
		{"twice at one time", []sample{at(0, 1), at(120, 2), at(120, 3)}, nil, []string{"0 1000"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := useOf(c.all, c.sleeps, client.Running)
			var got []string
			for _, line := range u.Charts[1].Lines {
				var xs []string
				for _, point := range strings.Fields(line) {
					var x, y float64
					if _, err := fmt.Sscanf(point, "%g,%g", &x, &y); err != nil || x < 0 || x > 1000 || y < 0 || y > 1000 {
						t.Errorf("a point at %q", point)
					}
					xs = append(xs, percent(x))
				}
				got = append(got, strings.Join(xs, " "))
			}
			want := c.lines
			for n, line := range want {
				if !strings.Contains(line, " ") {
					want[n] = line + " " + line // a dot
				}
			}
			if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(u.Sleeps, c.bands) {
				t.Errorf("lines at %q with sleeps at %v, want %q and %v", got, u.Sleeps, want, c.bands)
			}
			if label := u.Charts[1].Label; strings.Contains(label, "slept") != (len(c.bands) > 0) {
				t.Errorf("it is said to be %s", label)
			}
			for n, r := range u.Rows {
				if n > 0 && !r.At.Before(u.Rows[n-1].At) || len(r.Values) != 3 || strings.Count(r.Y, ",") != 2 {
					t.Errorf("row %d is %+v", n, r)
				}
			}
		})
	}
	if u := useOf(nil, nil, client.Running); u != nil {
		t.Errorf("of nothing: %+v", u)
	}
	if u := useOf(make([]sample, 2000), nil, client.Running); len(u.Rows) > usePoints {
		t.Errorf("%d rows", len(u.Rows))
	}
}

// TestUseWords: what is said of the last value, of a sandbox that sleeps too.
func TestUseWords(t *testing.T) {
	c := useOf([]sample{at(0, 100), at(60, 212)}, nil, client.Running).Charts
	if c[1].Now != "212.0 MiB" || c[1].Of != "of 1.0 GiB" || c[0].Now != "50%" || c[0].Of != "of 2 CPUs" {
		t.Errorf("%+v", c)
	}
	if want := "Memory from Nov 28 12:00:00 to Nov 28 12:01:00 UTC: last 212.0 MiB of 1.0 GiB; between 100.0 MiB and 212.0 MiB"; c[1].Label != want {
		t.Errorf("%s, want %s", c[1].Label, want)
	}
	if c := useOf([]sample{at(0, 100)}, nil, client.Paused).Charts; c[1].Now != "last 100.0 MiB" {
		t.Errorf("of one that sleeps: %s", c[1].Now)
	}
}

// TestLimits: the axis goes up to a limit that is near, and past one that the use is
// above; what is no number is no limit, and no value.
func TestLimits(t *testing.T) {
	const MiB = 1 << 20
	for _, c := range []struct {
		name       string
		limit      float64
		values     []float64
		top, where string
		lines      int
	}{
		{"above the use", 100 * MiB, []float64{50 * MiB, 60 * MiB}, "128 MiB", "21.9", 1},
		{"below the use", 100 * MiB, []float64{50 * MiB, 300 * MiB}, "384 MiB", "74", 1},
		{"as high as the use", 128 * MiB, []float64{128 * MiB, 0}, "128 MiB", "0", 1},
		{"far above", 1 << 40, []float64{50 * MiB, 60 * MiB}, "64 MiB", "", 1},
		{"none", 0, []float64{50 * MiB, 60 * MiB}, "64 MiB", "", 1},
		{"negative", -1, []float64{50 * MiB, 60 * MiB}, "64 MiB", "", 1},
		{"no number", math.NaN(), []float64{50 * MiB, 60 * MiB}, "64 MiB", "", 1},
		{"endless", math.Inf(1), []float64{50 * MiB, 60 * MiB}, "64 MiB", "", 1},
		{"nothing is used", 100 * MiB, []float64{0, 0}, "1 KiB", "", 1},
		{"a value that is no number", 100 * MiB, []float64{50 * MiB, math.NaN(), 60 * MiB, -1, 50 * MiB}, "128 MiB", "21.9", 3},
		{"no value is a number", 100 * MiB, []float64{math.NaN(), math.Inf(1)}, "1 KiB", "", 0},
	} {
		all, parted := make([]sample, len(c.values)), make([]bool, len(c.values))
		for n := range all {
			all[n] = at(float64(n), int64(n))
		}
		m := measure{
			"Memory", bytesUsed, func(s sample) float64 { return c.values[s.Memory>>20] }, func(sample) float64 { return c.limit },
			func(sample) string { return "" }, func(sample) string { return "" },
		}
		got, heights := m.draw(all, parted, func(t time.Time) float64 { return t.Sub(noon).Seconds() })
		if top := got.Ticks[len(got.Ticks)-1]; top.Text != c.top || top.At != "0" || got.Limit != c.where || len(got.Lines) != c.lines {
			t.Errorf("%s: up to %s, limit at %q, lines %q; want %s, %q and %d", c.name, texts(got.Ticks), got.Limit, got.Lines, c.top, c.where, c.lines)
		}
		if text := fmt.Sprint(got, heights); strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%s: %s", c.name, text)
		}
	}
}

// TestSleepsIn: a sandbox sleeps from a pause to the next change, and a checkpoint is none.
func TestSleepsIn(t *testing.T) {
	change := func(seconds float64, to, cause string) lifeChange { return lifeChange{at(seconds, 0).At, to, cause} }
	for name, c := range map[string]struct {
		all  []lifeChange
		want []spell
	}{
		"one":               {[]lifeChange{change(0, "running", ""), change(10, "paused", "idle"), change(20, "resuming", ""), change(21, "running", "")}, []spell{slept(10, 20)}},
		"changed meanwhile": {[]lifeChange{change(10, "paused", "idle"), change(15, "paused", "call"), change(20, "running", "")}, []spell{slept(10, 20)}},
		"until now":         {[]lifeChange{change(10, "paused", "idle")}, []spell{slept(10, 100)}},
		"a checkpoint":      {[]lifeChange{change(10, "paused", "checkpoint"), change(11, "running", "checkpoint")}, nil},
		"the clock back":    {[]lifeChange{change(10, "paused", "idle"), change(5, "running", ""), change(30, "paused", "idle"), change(40, "running", "")}, []spell{slept(30, 40)}},
		"none":              {nil, nil},
	} {
		got := sleepsIn(c.all, at(100, 0).At)
		for n := range got {
			got[n].Cause = ""
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
