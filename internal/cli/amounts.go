package cli

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

// mibFlag is a flag that takes a size, and has it in MiB.
type mibFlag struct{ n *int }

// mibVar adds such a flag.
func mibVar(f *pflag.FlagSet, n *int, name string, value int, usage string) {
	*n = value
	f.Var(mibFlag{n}, name, usage)
	if value == 0 {
		f.Lookup(name).DefValue = ""
	}
}

func (m mibFlag) Type() string { return "size" }

func (m mibFlag) String() string {
	if m.n == nil {
		return ""
	}
	return strconv.Itoa(*m.n)
}

func (m mibFlag) Set(text string) (err error) {
	*m.n, err = parseMiB(text)
	return err
}

var (
	sizeForm = lazyregexp.New(`^([0-9]*\.?[0-9]+)(b|[kmgt](?:i?b|i)?|)$`)
	dayForm  = lazyregexp.New(`([0-9]*\.?[0-9]+)([dw])`)
)

// units are those of sizes, in MiB. As with docker, all are powers of 2.
var units = map[byte]float64{'b': 1.0 / (1 << 20), 'k': 1.0 / (1 << 10), 'm': 1, 'g': 1 << 10, 't': 1 << 20}

// parseMiB reads a size: a number of MiB, or one with a unit.
func parseMiB(text string) (int, error) {
	parts := sizeForm.FindStringSubmatch(strings.ToLower(text))
	if parts == nil {
		return 0, errors.New("want a size such as 512m or 2g, or a number of MiB")
	}
	n, err := strconv.ParseFloat(parts[1], 64)
	if parts[2] != "" {
		n *= units[parts[2][0]]
	}
	switch {
	case err != nil || n > math.MaxInt32:
		return 0, errors.New("that is too much")
	case n != math.Trunc(n):
		return 0, errors.New("want whole MiB")
	}
	return int(n), nil
}

// cpusFlag is a flag that takes a number of CPUs.
type cpusFlag struct{ n *float64 }

func (c cpusFlag) Type() string { return "float" }

func (c cpusFlag) String() string {
	if c.n == nil {
		return "0"
	}
	return strconv.FormatFloat(*c.n, 'f', -1, 64)
}

// Set takes 2 and 0.5.
func (c cpusFlag) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || math.IsNaN(n) || n < 0 || n > math.MaxInt32:
		return errors.New("want a number of CPUs such as 2 or 0.5")
	}
	*c.n = n
	return nil
}

// spanFlag is a flag that takes a duration.
type spanFlag struct{ d *time.Duration }

// spanVar adds such a flag.
func spanVar(f *pflag.FlagSet, d *time.Duration, name string, value time.Duration, usage string) {
	*d = value
	f.Var(spanFlag{d}, name, usage)
}

func (s spanFlag) Type() string { return "duration" }

func (s spanFlag) String() string {
	if s.d == nil {
		return ""
	}
	return length(*s.d)
}

func (s spanFlag) Set(text string) (err error) {
	*s.d, err = parseSpan(text)
	return err
}

// inHours writes days and weeks, which Go has not, as hours.
func inHours(text string) string {
	return dayForm.ReplaceAllStringFunc(text, func(part string) string {
		last := len(part) - 1
		n, err := strconv.ParseFloat(part[:last], 64)
		if err != nil {
			return part
		}
		if part[last] == 'w' {
			n *= 7
		}
		return strconv.FormatFloat(n*24, 'f', -1, 64) + "h"
	})
}
