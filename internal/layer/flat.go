package layer

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Flat listings are the form before the present one: a line has the whole path,
// nothing ends the last, and those of merged layers are in another order. Layers
// that have one are still verified and merged, and exports of that time read.

// flat returns the line in that form.
func (l line) flat() string {
	return strconv.Quote(l.path().String()) + " " + l.facts()
}

// flatDigest returns the digest that a layer's listing had in that form.
func flatDigest(ctx context.Context, dir string) (string, error) {
	sum, between := sha256.New(), ""
	err := list(ctx, dir, func(l line) error {
		_, err := io.WriteString(sum, between+l.flat())
		between = "\n"
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// readFlat returns the lines of a flat listing in the order of the present form.
func readFlat(r *bufio.Reader) ([]line, error) {
	data, err := io.ReadAll(r)
	if err != nil || len(data) == 0 {
		return nil, err
	}
	type located struct {
		line
		names []string
	}
	var all []located
	for text := range strings.SplitSeq(string(data), "\n") {
		quoted, err := strconv.QuotedPrefix(text)
		path, err2 := strconv.Unquote(quoted)
		if err != nil || err2 != nil || len(text) < len(quoted)+1 {
			panic(fmt.Sprintf("internal error: layer: %q is no line of a listing", text))
		}
		l := located{line: line{name: path}}
		if path != "." {
			l.names = strings.Split(path, "/")
			l.depth, l.name = len(l.names), l.names[len(l.names)-1]
		}
		l.setFacts(text[len(quoted)+1:])
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b located) int { return slices.Compare(a.names, b.names) })
	lines := make([]line, len(all))
	for i, l := range all {
		lines[i] = l.line
	}
	return lines, nil
}
