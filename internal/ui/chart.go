package ui

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
)

// use is what a sandbox used over time: charts with one time axis, and the same as a
// table. Positions are percents of a chart, from its upper left corner.
type use struct {
	Charts []chart
	Times  []tick
	Sleeps []band
	Rows   []useRow // newest first
}

// chart is one measure over time.
type chart struct {
	Name, Now, Of string
	Label         string   // for those who do not see it
	Ticks         []tick   // of the axis of values
	Limit         string   // where it is; empty for none that is near
	Lines         []string // points, in thousandths of the chart; no line crosses a sleep
}

// tick is a round value on an axis.
type tick struct{ At, Text string }

// band is a time from one end of a chart to the other.
type band struct{ X, Width string }

// useRow is what was measured at a time, of all charts.
type useRow struct {
	At     time.Time
	X      string
	Y      string // of each chart, empty where there is no value
	Values []string
}

// measure is what a chart is of.
type measure struct {
	name   string
	scale  scale
	value  func(sample) float64
	limit  func(sample) float64
	amount func(sample) string
	of     func(sample) string
}

var useMeasures = []measure{
	{
		"Processor", percents, func(s sample) float64 { return s.CPU }, func(sample) float64 { return 100 },
		func(s sample) string { return percents.say(s.CPU) }, func(s sample) string { return fmt.Sprintf("of %v %s", s.CPUs, cpuWord(s.CPUs)) },
	},
	{
		"Memory", bytesUsed, func(s sample) float64 { return float64(s.Memory) }, func(s sample) float64 { return float64(s.MemoryMax) },
		func(s sample) string { return human.Bytes(s.Memory) }, func(s sample) string { return ofBytes(s.MemoryMax) },
	},
	{
		"Disk", bytesUsed, func(s sample) float64 { return float64(s.Disk) }, func(s sample) float64 { return float64(s.DiskMax) },
		func(s sample) string { return human.Bytes(s.Disk) }, func(s sample) string { return ofBytes(s.DiskMax) },
	},
}

func cpuWord(n float64) string {
	if n == 1 {
		return "CPU"
	}
	return "CPUs"
}

func ofBytes(n int64) string {
	if n <= 0 {
		return ""
	}
	return "of " + human.Bytes(n)
}

const (
	// usePoints is how many samples are drawn at most: the server keeps no more.
	usePoints = 360
	// leastSpan is the shortest time that an axis has.
	leastSpan = time.Minute
	// nearLimit is the part of its limit that a use reaches for the axis to go up to it. A
	// lower use could not be told from none.
	nearLimit = 0.25
)

// useOf draws samples, oldest first, of a sandbox that has slept for a while now and
// then. It returns nil for none.
func useOf(all []sample, sleeps []spell, state client.State) *use {
	all = inOrder(all[max(0, len(all)-usePoints):])
	if len(all) == 0 {
		return nil
	}
	begin, end := all[0].At, all[len(all)-1].At
	if end.Sub(begin) < leastSpan {
		begin = end.Add(-leastSpan)
	}
	place := func(t time.Time) float64 { return 100 * float64(t.Sub(begin)) / float64(end.Sub(begin)) }
	u := &use{Rows: make([]useRow, len(all))}
	for _, t := range timeTicks(begin, end) {
		u.Times = append(u.Times, tick{percent(place(t.at)), t.text})
	}
	for _, s := range sleeps {
		from, until := max(0, place(s.Time)), min(100, place(s.until))
		if from < until {
			u.Sleeps = append(u.Sleeps, band{percent(from), percent(until - from)})
		}
	}
	row := func(n int) *useRow { return &u.Rows[len(all)-1-n] }
	for n, s := range all {
		*row(n) = useRow{At: s.At, X: percent(place(s.At))}
	}
	parted := partedBy(all, sleeps)
	for _, m := range useMeasures {
		c, heights := m.draw(all, parted, place)
		if state != client.Running {
			c.Now = "last " + c.Now
		}
		if len(u.Sleeps) > 0 {
			c.Label += fmt.Sprintf("; nothing while it slept, %d %s", len(u.Sleeps), plural(len(u.Sleeps), "time"))
		}
		u.Charts = append(u.Charts, c)
		for n, s := range all {
			r, text := row(n), "–"
			if heights[n] != "" {
				text = m.amount(s)
			}
			r.Values = append(r.Values, text)
			if len(r.Values) > 1 {
				r.Y += ","
			}
			r.Y += heights[n]
		}
	}
	return u
}

// draw makes the chart of a measure, and returns how high each sample is in it: nothing
// for one that has no value.
func (m measure) draw(all []sample, parted []bool, place func(time.Time) float64) (chart, []string) {
	last := all[len(all)-1]
	least, most, known := math.Inf(1), 0.0, false
	for _, s := range all {
		if v := m.value(s); isAmount(v) {
			least, most, known = min(least, v), max(most, v), true
		}
	}
	limit := m.limit(last)
	limited := isAmount(limit) && limit > 0
	c := chart{Name: m.name, Now: "–", Of: m.of(last)}
	top := most
	if limited && most >= nearLimit*limit {
		top = max(most, limit)
	}
	ticks := m.scale.ticks(top)
	top = ticks[len(ticks)-1]
	height := func(v float64) float64 { return 100 * (1 - v/top) }
	for _, v := range ticks {
		c.Ticks = append(c.Ticks, tick{percent(height(v)), m.scale.text(v)})
	}
	if limited && limit <= top {
		c.Limit = percent(height(limit))
	}
	heights := make([]string, len(all))
	var line []string
	end := func() {
		if len(line) == 1 {
			line = append(line, line[0]) // a dot
		}
		if len(line) > 0 {
			c.Lines = append(c.Lines, strings.Join(line, " "))
		}
		line = nil
	}
	for n, s := range all {
		v := m.value(s)
		if !isAmount(v) {
			end()
			continue
		}
		if parted[n] {
			end()
		}
		heights[n] = percent(height(v))
		line = append(line, percent(10*place(s.At))+","+percent(10*height(v)))
	}
	end()
	const stamp = "Jan 2 15:04:05"
	c.Label = fmt.Sprintf("%s from %s to %s UTC", m.name, all[0].At.UTC().Format(stamp), last.At.UTC().Format(stamp))
	if isAmount(m.value(last)) {
		c.Now = m.amount(last)
		c.Label += strings.TrimRight(fmt.Sprintf(": last %s %s", c.Now, c.Of), " ")
	}
	if known {
		c.Label += fmt.Sprintf("; between %s and %s", m.scale.say(least), m.scale.say(most))
	}
	return c, heights
}

// isAmount reports whether something can be drawn, and be a limit.
func isAmount(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }

// inOrder leaves out the samples that are not before the next one that is left: they
// were taken before the clock was set back.
func inOrder(all []sample) []sample {
	kept := make([]sample, 0, len(all))
	for _, s := range all {
		for len(kept) > 0 && !kept[len(kept)-1].At.Before(s.At) {
			kept = kept[:len(kept)-1]
		}
		kept = append(kept, s)
	}
	return kept
}

// partedBy reports of each sample whether the sandbox has slept since the one before.
func partedBy(all []sample, sleeps []spell) []bool {
	parted := make([]bool, len(all))
	for n := 1; n < len(all); n++ {
		for _, s := range sleeps {
			if s.Time.Before(all[n].At) && s.until.After(all[n-1].At) {
				parted[n] = true
				break
			}
		}
	}
	return parted
}

// sleepsIn returns when a sandbox has slept, by its changes, oldest first. A checkpoint
// is none: it runs on at once.
func sleepsIn(all []lifeChange, end time.Time) (sleeps []spell) {
	for _, s := range spellsOf(all, end) {
		if s.To == string(client.Paused) && s.Cause != "checkpoint" && s.until.After(s.Time) {
			sleeps = append(sleeps, s)
		}
	}
	return sleeps
}

// scale is how the values of an axis are chosen and written.
type scale struct {
	least float64 // step
	next  func(step float64) float64
	text  func(v float64) string // of a round value
	say   func(v float64) string // of any
}

// mostSteps is how many steps an axis of values has at most.
const mostSteps = 4

// ticks returns round values from 0 to one that is not below most.
func (s scale) ticks(most float64) []float64 {
	step := s.least
	for step*mostSteps < most {
		step = s.next(step)
	}
	ticks := []float64{0, step}
	for v := step; v < most; {
		v += step
		ticks = append(ticks, v)
	}
	return ticks
}

var (
	percents = scale{
		least: 1,
		next: func(step float64) float64 { // 1, 2, 5, 10
			if strconv.FormatFloat(step, 'e', 0, 64)[0] == '2' {
				return step * 2.5
			}
			return step * 2
		},
		text: func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) + "%" },
		say: func(v float64) string {
			if v < 10 {
				return fmt.Sprintf("%.1f%%", v)
			}
			return fmt.Sprintf("%.0f%%", v)
		},
	}
	bytesUsed = scale{
		least: 1 << 10,
		next:  func(step float64) float64 { return step * 2 },
		text:  func(v float64) string { return strings.Replace(human.Bytes(int64(v)), ".0 ", " ", 1) },
		say:   func(v float64) string { return human.Bytes(int64(v)) },
	}
)

// timeSteps are the steps of an axis of times, until a day. Then they double.
var timeSteps = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
}

type timeTick struct {
	at   time.Time
	text string
}

// timeTicks returns round times of a time, as few as have room on a narrow chart.
func timeTicks(begin, end time.Time) (ticks []timeTick) {
	var step time.Duration
	for n := 0; ; n++ {
		step = timeSteps[min(n, len(timeSteps)-1)] << max(0, n-len(timeSteps)+1)
		most := time.Duration(4)
		if step < time.Minute { // with seconds
			most = 3
		}
		if end.Sub(begin)/most <= step {
			break
		}
	}
	for t := begin.UTC().Truncate(step); !t.After(end); t = t.Add(step) {
		if t.Before(begin) {
			continue
		}
		form := "15:04"
		switch {
		case step < time.Minute:
			form = time.TimeOnly
		case cmp.Or(t.Hour(), t.Minute()) == 0:
			form = "Jan 2"
		}
		ticks = append(ticks, timeTick{t, t.Format(form)})
	}
	return ticks
}

// percent is a position. It has no more digits than a screen shows.
func percent(v float64) string {
	return strconv.FormatFloat(math.Round(10*v)/10, 'f', -1, 64)
}
