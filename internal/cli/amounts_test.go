package cli

import (
	"testing"
	"time"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]int{
		"512": 512, "0": 0, "2g": 2048, "2G": 2048, "2Gi": 2048, "2GiB": 2048, "2gb": 2048, "512m": 512, "0.5g": 512, "1.5g": 1536, ".5g": 512,
		"2048k": 2, "1048576b": 1, "1t": 1 << 20,
		"": -1, "g": -1, "2x": -1, "-2g": -1, "2 g": -1, "0.3m": -1, "1k": -1, "1e3": -1, "nan": -1, "99999t": -1, "1.2.3g": -1,
	} {
		got, err := parseMiB(text)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestCPUs(t *testing.T) {
	for text, want := range map[string]float64{"2": 2, "2.0": 2, "0.5": 0.5, "1.5": 1.5, "-1": -1, "x": -1, "NaN": -1, "inf": -1} {
		got := 0.
		if err := (cpusFlag{&got}).Set(text); err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

func TestSpans(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"1d": day, "1.5d": 36 * time.Hour, "2w": 14 * day, "1d12h": 36 * time.Hour, "1w1d1h1m": 8*day + time.Hour + time.Minute,
		"90s": 90 * time.Second, "0.5h": 30 * time.Minute, "-1d": -day, "0": 0,
		"d": -1, "1day": -1, "90": -1, "1d2": -1, "999999999d": -1,
	} {
		got, err := parseSpan(text)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q: got %v, %v; want %v", text, got, err, want)
		}
	}
}
