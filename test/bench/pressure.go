package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

const (
	// pressureSlack is how much more than the floor is available before the pressure:
	// what else happens on the machine is not to be any.
	pressureSlack = 512 << 20
	// pressureWatch is how often memory is looked at while it gets little, and for how
	// long there must be enough for that to be over.
	pressureWatch, pressureOver = 5 * time.Millisecond, time.Second
	// pressureTimeout is how long that may take.
	pressureTimeout = time.Minute
)

// pressure measures how sandboxes in light sleep make way for one that needs memory, and
// whether all of them are still there.
//
// The server is told to keep so much memory available that the machine itself has
// plenty: what is available at its start, less what the light sleepers will hold.
func (b *bench) pressure(ctx context.Context) (err error) {
	many, holds := 20, size{memory: 64}
	if b.o.small {
		many = 6
	}
	var before, after, short, wake []float64
	woken := 0
	for range b.runs(5) {
		p, err := b.pressOnce(ctx, many, holds)
		if err != nil {
			return fmt.Errorf("%d sandboxes of %s: %w", many, holds, err)
		}
		before, after = append(before, mebibytes(p.before)), append(after, mebibytes(p.after))
		short, wake = append(short, milliseconds(p.short)), append(wake, milliseconds(p.lastWake))
		woken += p.woken
	}
	what := fmt.Sprintf("%d light sleepers of %s, and half as much is missing: ", many, holds)
	b.report.plain("B26", what+"they hold before", "MiB", before, 0)
	b.report.plain("B26", what+"they hold after", "MiB", after, 0)
	b.report.plain("B26", what+"less than the floor is available for", "ms", short, 0)
	b.report.plain("B26", what+"the slowest wake after it", "ms", wake, 0)
	b.report.note("Of the light sleepers under pressure, %d of %d are there afterwards, and wake with their memory.", woken, many*len(before))
	return nil
}

// pressed is what light sleepers under pressure showed.
type pressed struct {
	before, after int64         // bytes that light sleepers hold
	short         time.Duration // for which less than the floor was available
	woken         int
	lastWake      time.Duration
}

func (b *bench) pressOnce(ctx context.Context, many int, holds size) (res pressed, err error) {
	one, err := b.holdsAsleep(ctx, holds)
	if err != nil {
		return res, err
	}
	all := int64(many) * one
	available, err := availableMemory()
	if err != nil {
		return res, err
	}
	floor := available - all - pressureSlack
	if floor < all {
		return res, fmt.Errorf("%.0f MiB of memory are available, which is too little to measure with %.0f", mebibytes(available), mebibytes(all))
	}
	if err := b.serveLight(ctx, fmt.Sprintf("--light-sleep-floor=%d", floor>>20)); err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, b.serveDeep(ctx)) }()
	var list []*sandboxSleeper
	defer func() { err = errors.Join(err, closeAll(ctx, list)) }()
	for range many {
		p, err := newSandboxSleeper(ctx, b.server, b.o.guest, 0, holds)
		if err != nil {
			return res, err
		}
		list = append(list, p)
		if _, err := p.pause(ctx); err != nil {
			return res, err
		}
	}
	lie, held, err := b.server.lightSleepers(ctx)
	if err != nil {
		return res, err
	}
	if lie != many {
		return res, fmt.Errorf("%d of %d sandboxes sleep lightly before there is any pressure", lie, many)
	}
	res.before = held
	if res.short, err = b.press(ctx, floor, held/2); err != nil {
		return res, err
	}
	if _, res.after, err = b.server.lightSleepers(ctx); err != nil {
		return res, err
	}
	for _, p := range list {
		took, err := p.wake(ctx)
		if err != nil {
			return res, fmt.Errorf("wake after the pressure: %w", err)
		}
		res.woken, res.lastWake = res.woken+1, max(res.lastWake, took)
	}
	return res, nil
}

// holdsAsleep returns how many bytes a guest holds in light sleep.
func (b *bench) holdsAsleep(ctx context.Context, holds size) (bytes int64, err error) {
	if err := b.serveLight(ctx); err != nil {
		return 0, err
	}
	p, err := newSandboxSleeper(ctx, b.server, b.o.guest, 0, holds)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.close(ctx)) }()
	if _, err := p.pause(ctx); err != nil {
		return 0, err
	}
	_, bytes, err = b.server.lightSleepers(ctx)
	return bytes, err
}

// press has a sandbox take memory until so much is missing to the floor, and ends it once
// enough is available again beside it. It returns for how long less than the floor was.
func (b *bench) press(ctx context.Context, floor, missing int64) (short time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, pressureTimeout)
	defer cancel()
	available, err := availableMemory()
	if err != nil {
		return 0, err
	}
	takes := available - floor + missing
	if takes > missing+2*pressureSlack {
		return 0, fmt.Errorf("%.0f MiB of memory were given back meanwhile by something else on this machine: nothing else should run", mebibytes(takes-missing-pressureSlack))
	}
	memory := int(takes >> 20)
	box, err := b.server.client.Create(ctx, client.CreateOptions{Timeout: guestTimeout, MemoryMiB: memory + 512})
	if err != nil {
		return 0, err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, b.server.client.Kill(ctx, box.ID), awaitGone(ctx, box.ID))
	}()
	p := &sandboxSleeper{server: b.server, box: box, query: "/"}
	if err := p.install(ctx, b.o.guest); err != nil {
		return 0, err
	}
	taken := make(chan error, 1)
	go func() { taken <- p.start(ctx, size{memory: memory}) }()
	var first, last time.Time // less than the floor was available
	taking, over := true, time.Now()
	for taking || time.Since(over) < pressureOver {
		select {
		case err := <-taken:
			if taking = false; err != nil {
				return 0, err
			}
		case <-time.After(pressureWatch):
		}
		available, err := availableMemory()
		if err != nil {
			return 0, err
		}
		if available < floor {
			if last = time.Now(); first.IsZero() {
				first = last
			}
		}
		if available < floor || taking {
			over = time.Now()
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%.0f MiB are available, and are to be %.0f: %w", mebibytes(available), mebibytes(floor), ctx.Err())
		}
	}
	if first.IsZero() {
		return 0, errors.New("there was no pressure: the floor was available all the time")
	}
	return last.Sub(first), nil
}

// lightSleepers returns how many sandboxes sleep lightly, and how many bytes they hold.
func (s *server) lightSleepers(ctx context.Context) (n int, bytes int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, serverURL+"/metrics", nil)
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("X-API-Key", serverKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	values := map[string]float64{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var value float64
		name, text, _ := strings.Cut(lines.Text(), " ")
		if _, err := fmt.Sscan(text, &value); err == nil {
			values[name] = value
		}
	}
	held, ok := values["drowse_light_sleep_memory_bytes"]
	if !ok {
		return 0, 0, fmt.Errorf("the server's metrics (%s) do not say what light sleepers hold", resp.Status)
	}
	return int(values["drowse_light_sleepers"]), int64(held), nil
}

// availableMemory returns how many bytes the machine has available.
func availableMemory() (int64, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo does not say what memory is available")
}
