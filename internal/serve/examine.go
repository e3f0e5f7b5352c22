package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	v1 "github.com/drowse-dev/drowse/internal/api/v1"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// What a running server finds of its own host: what [Doctor] finds, but for what
// would start sandboxes or set limits to try them.

const (
	// examineEvery is how old an answer can be: some checks walk over directories.
	examineEvery = 10 * time.Second
	// examinePatience is how long an answer waits for a check, and examineMost how long
	// a check may take, and how old its finding may be that stands for one that goes on.
	examinePatience, examineMost = 3 * time.Second, time.Minute
)

// check is one thing to look at.
type check struct {
	name string
	look func(ctx context.Context) Finding
	// lasts says that a good finding holds while the server runs: another look would
	// mount, or ask systemd, for the same answer.
	lasts bool
}

// examiner looks at the host. It is safe for concurrent use.
type examiner struct {
	checks []check

	mu     sync.Mutex     // also while an answer is made, which takes no longer than examinePatience
	last   []Finding      // what was answered
	at     time.Time      // when
	found  []outcome      // of each check, the last one
	coming []chan outcome // of those that go on
}

// outcome is what a check has found, and when.
type outcome struct {
	Finding
	at time.Time
}

// fitness is what a server knows of whether its host starts sandboxes.
type fitness interface {
	Ready() error
	Capabilities() runtime.Capabilities
}

// newExaminer returns one for the server of a state directory. It
// waits for the trial of the start.
func newExaminer(stateDir string, f fitness, first firstTrial) *examiner {
	plain := func(look func() Finding) func(context.Context) Finding {
		return func(context.Context) Finding { return look() }
	}
	at := os.DirFS("/")
	return examines(
		check{"runtime", func(ctx context.Context) Finding {
			first.wait(ctx)
			return runtimeOf(f, first != nil)
		}, false},
		check{"root", plain(root), true},
		check{"kernel", plain(kernel), true},
		check{"disk", plain(func() Finding { return space(stateDir) }), false},
		check{"builds", func(ctx context.Context) Finding { return keptBuilds(ctx, stateDir) }, false},
		check{"system calls", plain(calls), true},
		check{"overlayfs", plain(func() Finding { return overlays(stateDir) }), true},
		check{"cgroups", controlGroups, true},
		check{fileLimit, plain(openFiles), false},
		check{"namespaces", plain(func() Finding { return namespaces(at) }), false},
		check{"memory", plain(memory), false},
		check{"security", plain(func() Finding { return security(at, policyAllows) }), false},
		check{"template base", plain(guestTools), false},
	)
}

func examines(checks ...check) *examiner {
	return &examiner{checks: checks, found: make([]outcome, len(checks)), coming: make([]chan outcome, len(checks))}
}

// Findings returns what the checks find, in their order. One that takes too long goes
// on for a later answer.
func (x *examiner) Findings(ctx context.Context) []v1.Finding {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.last == nil || time.Since(x.at) >= examineEvery {
		x.last, x.at = x.examine(context.WithoutCancel(ctx)), time.Now()
	}
	all := make([]v1.Finding, len(x.last))
	for i, f := range x.last {
		all[i] = v1.Finding(f)
	}
	return all
}

// examine makes all checks at once. One that goes on since an earlier answer is not begun
// again, and what it finds is for a later answer.
func (x *examiner) examine(ctx context.Context) []Finding {
	for i, c := range x.checks {
		x.take(i)
		if x.coming[i] == nil && !(c.lasts && x.found[i].OK) {
			x.coming[i] = begin(ctx, c)
		}
	}
	patience, cancel := context.WithTimeout(ctx, examinePatience)
	defer cancel()
	answer := make([]Finding, len(x.checks))
	for i, c := range x.checks {
		if x.coming[i] != nil {
			select {
			case x.found[i] = <-x.coming[i]:
				x.coming[i] = nil
			case <-patience.Done():
				x.take(i)
			}
		}
		answer[i] = x.found[i].Finding
		if x.coming[i] != nil && time.Since(x.found[i].at) > examineMost {
			answer[i] = Finding{Name: c.name, Detail: fmt.Sprintf("not known: there was no answer within %s", examinePatience), Remedy: "ask again; if it stays like this, look whether the disk of the state directory answers"}
		}
	}
	return answer
}

// take takes what a check has found, if it has ended.
func (x *examiner) take(i int) {
	select {
	case x.found[i] = <-x.coming[i]: // from nil, nothing comes
		x.coming[i] = nil
	default:
	}
}

// begin begins a check, for whoever still waits for it when it ends.
func begin(ctx context.Context, c check) chan outcome {
	found := make(chan outcome, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, examineMost)
		defer cancel()
		found <- outcome{c.look(ctx), time.Now()}
	}()
	return found
}

// runtimeOf says what the server has learned of its runtime by starting sandboxes.
func runtimeOf(f fitness, tried bool) Finding {
	can := f.Capabilities()
	found := Finding{Name: "runtime " + can.Isolation, Required: true, OK: true}
	if err := f.Ready(); err != nil {
		found.OK, found.Detail = false, "no sandbox starts on this host: "+oneLine(err)
		found.Remedy = "see the server's log; it tries again every 10 seconds"
		if e, ok := errors.AsType[*errdef.Error](err); ok && e.Remedy != "" {
			found.Remedy = e.Remedy
		}
		return found
	}
	known := "a trial sandbox has started"
	if !tried {
		known = "no trial was made at the start (--trial=false), and no sandbox has failed for what this host lacks"
	}
	found.Detail = fmt.Sprintf("usable: %s (%s)", known, aboutRuntime(can))
	return found
}
