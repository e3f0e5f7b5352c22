package build

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// What a failure is attributed to that is no step's, as clients know it.
const (
	stepBase     = "base"
	stepFinalize = "finalize"
)

// leaveWithin bounds how long a build takes to put away what it leaves.
const leaveWithin = 2 * time.Minute

// making is a build that runs.
type making struct {
	b      *Builder
	t      Template // as it was when the build began
	build  Build
	recipe Recipe
	log    *journal

	step    string   // what is being done
	origin  Origin   // what the recipe begins with
	at      Result   // what has been reached
	sandbox string   // that has just that; empty for none
	awake   bool     // it runs
	memory  bool     // the result has memory
	known   []Result // of earlier builds
	results []Result
	spare   []string // snapshots that the template may not need any more
}

// run does a build to its end.
func (b *Builder) run(ctx context.Context, t Template, id string, r Recipe) {
	b.mu.Lock()
	j := b.journals[id]
	b.mu.Unlock()
	if j == nil { // deleted
		return
	}
	m := &making{b: b, t: t, build: *t.Build(id), recipe: r, log: j, step: stepBase}
	began := time.Now()
	err := m.inTurn(ctx)
	b.o.Log.Info("template built", "template", t.Name, "build", id, "step", m.step, "dur", time.Since(began), "err", err)
}

// inTurn waits until the build may run, runs it, and puts away what it leaves. A build
// forgets what others of its template have led to: they come one after another.
func (m *making) inTurn(ctx context.Context) error {
	done, err := m.b.orders.Enter(ctx, m.t.ID)
	if err == nil {
		defer done()
		done, err = m.b.turns.Enter(ctx, m.t.Key)
	}
	if err == nil {
		defer done()
		err = m.inTime(ctx)
	}
	if err != nil && m.b.ctx.Err() != nil {
		err = errors.New(stopped)
	}
	ctx = context.WithoutCancel(ctx)
	m.leave(ctx)
	m.settle(ctx, err)
	return err
}

// inTime makes the result, or ends the build when that takes too long.
func (m *making) inTime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, finishWithin)
	defer cancel()
	err := m.make(ctx)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("the build was not over after %v, and has been ended", finishWithin)
	}
	return err
}

// make makes the result.
func (m *making) make(ctx context.Context) error {
	if err := m.b.o.Room(); err != nil {
		return err
	}
	if err := m.resolve(ctx); err != nil {
		return err
	}
	for i, s := range m.recipe.Steps {
		m.step = strconv.Itoa(i + 1)
		if err := m.do(ctx, s); err != nil {
			return err
		}
	}
	m.step = stepFinalize
	return m.finalize(ctx)
}

func (m *making) say(level Level, format string, args ...any) {
	m.log.add(level, m.step, fmt.Sprintf(format, args...))
}

// output passes on what a command says.
func (m *making) output(text string) { m.log.add(Info, m.step, text) }

// resolve finds what the recipe begins with.
func (m *making) resolve(ctx context.Context) (err error) {
	if m.origin, err = m.b.o.Origins.Resolve(ctx, m.recipe.Base); err != nil {
		return err
	}
	m.say(Info, "FROM %s", m.origin.Alias)
	m.at = Result{Hash: m.origin.id(), State: m.origin.State}
	return m.recall(ctx)
}

// recall finds out what earlier builds have led to. Snapshots can be removed by
// hand.
func (m *making) recall(ctx context.Context) error {
	t, err := m.b.byID(m.t.ID)
	if err != nil {
		return err
	}
	_, there, err := m.b.o.Yard.Left(ctx)
	m.known = slices.DeleteFunc(t.Cache, func(r Result) bool { return r.Snapshot != "" && !slices.Contains(there, r.Snapshot) })
	return err
}

// next returns the hash of what there is after one more step.
func (m *making) next(s Step) string {
	state, _ := json.Marshal(m.at.State)
	text, _ := json.Marshal([]any{resultForm, m.at.Hash, string(state), s.Kind, s.Args, s.Files})
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// resultForm changes when the same step would lead to something else.
const resultForm = "3"

// do takes one step, or finds what it led to before.
func (m *making) do(ctx context.Context, s Step) error {
	hash := m.next(s)
	if s.Force {
		m.recipe.Force = true
	}
	if i := slices.IndexFunc(m.known, func(r Result) bool { return r.Hash == hash }); i >= 0 && !m.recipe.Force {
		if err := m.rest(ctx); err != nil { // it is at an earlier step
			return err
		}
		m.say(Info, "CACHED %s", s)
		m.at = m.known[i]
		m.results = append(m.results, m.at)
		return nil
	}
	m.say(Info, "%s", s)
	state, files, err := m.take(ctx, s)
	if err != nil {
		return err
	}
	reached := Result{Hash: hash, Snapshot: m.at.Snapshot, State: state}
	if files {
		if reached.Snapshot, err = m.keep(ctx); err != nil {
			return err
		}
	}
	m.at = reached
	m.results = append(m.results, reached)
	return m.remember(reached)
}

// change changes the template, unless it was deleted.
func (m *making) change(f func(*Template)) (Template, error) {
	return m.b.change(m.t.ID, func(t *Template) error {
		f(t)
		return nil
	})
}

// remember stores what a step has led to, so that no later build takes it again,
// whatever becomes of this one.
func (m *making) remember(r Result) error {
	_, err := m.change(func(t *Template) {
		for _, x := range t.Cache { // it may be one that goes now
			m.spare = append(m.spare, x.Snapshot)
		}
		known := slices.DeleteFunc(t.Cache, func(x Result) bool { return x.Hash == r.Hash })
		t.Cache = bounded(append([]Result{r}, known...))
	})
	return err
}

// String is what the log says of a step.
func (s Step) String() string {
	return string(s.Kind) + " " + strings.Join(s.Args, " ")
}

// ready makes sure that a sandbox runs that has what was reached.
func (m *making) ready(ctx context.Context) error {
	switch {
	case m.awake:
		return nil
	case m.sandbox != "":
		if err := m.b.o.Workshop.Wake(ctx, m.sandbox, m.most()); err != nil {
			return err
		}
		m.awake = true
		return m.script(ctx, putTmp)
	}
	from := m.origin
	if m.at.Snapshot != "" {
		from = Origin{Snapshot: m.at.Snapshot}
	}
	if err := m.begin(ctx, from, State{}); err != nil || m.at.Snapshot == "" {
		return err
	}
	return m.script(ctx, putTmp)
}

// most is how long a sandbox of a build lives at most.
func (m *making) most() time.Duration {
	if most := m.b.o.Most; most > 0 {
		return min(most, finishWithin)
	}
	return finishWithin
}

// begin starts a sandbox. A state is what its snapshots pass on.
func (m *making) begin(ctx context.Context, from Origin, state State) (err error) {
	m.sandbox, err = m.b.o.Workshop.Begin(ctx, from, Spec{
		Build: m.build.ID, Name: m.t.Name, Key: m.t.Key, Limits: m.build.Limits, State: state, Most: m.most(),
	})
	m.awake = err == nil
	return err
}

// keep makes a snapshot of the files that a step has left. The sandbox sleeps then:
// no process of a step is there in the next.
func (m *making) keep(ctx context.Context) (string, error) {
	if err := m.script(ctx, keepTmp); err != nil {
		return "", err
	}
	if err := m.b.o.Workshop.Rest(ctx, m.sandbox, false); err != nil {
		return "", err
	}
	m.awake = false
	id, err := m.b.o.Workshop.Keep(ctx, m.sandbox, Kept{Build: m.build.ID, Key: m.t.Key})
	if err == nil {
		m.spare = append(m.spare, id)
	}
	return id, err
}

// rest puts away the sandbox, because what is known goes further.
func (m *making) rest(ctx context.Context) error {
	if m.sandbox == "" {
		return nil
	}
	if err := m.b.o.Yard.End(ctx, m.sandbox); err != nil {
		return err // the build fails, and leave ends it
	}
	m.sandbox, m.awake = "", false
	return nil
}

// finalize makes the result: a sandbox with the state that the steps have led to,
// in which the start command runs, if there is one.
func (m *making) finalize(ctx context.Context) error {
	if err := m.rest(ctx); err != nil {
		return err
	}
	from := m.origin
	if m.at.Snapshot != "" {
		from = Origin{Snapshot: m.at.Snapshot}
	}
	if err := m.begin(ctx, from, m.at.State); err != nil {
		return err
	}
	if m.at.Snapshot != "" {
		if err := m.script(ctx, putTmp+dropTmp); err != nil {
			return err
		}
	}
	m.memory = m.recipe.Start != "" || m.recipe.Ready != ""
	if m.memory {
		if err := m.launch(ctx); err != nil {
			return err
		}
	}
	if err := m.b.o.Workshop.Rest(ctx, m.sandbox, m.memory); err != nil {
		return err
	}
	m.awake = false
	return m.name(ctx)
}

// How long a template may take to be ready, and how long it is given where no
// command says that it is.
const (
	readyWithin  = 5 * time.Minute
	readyEvery   = 500 * time.Millisecond
	readyWithout = 20 * time.Second
)

// launch runs the start command, and waits until the ready command succeeds. The
// command runs on, also in the result.
func (m *making) launch(ctx context.Context) error {
	ended := make(chan error, 1)
	if m.recipe.Start != "" {
		m.say(Info, "START %s", m.recipe.Start)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		started := make(chan struct{})
		c := shell(m.recipe.Start, m.at.State)
		c.Started = sync.OnceFunc(func() { close(started) })
		go func() { ended <- m.command(ctx, c, m.output) }()
		select {
		case <-started: // what is ready must not be kept without it
		case err := <-ended:
			if err := startEnded(err); err != nil {
				return err
			}
		}
	}
	if m.recipe.Ready == "" {
		select {
		case err := <-ended:
			return startEnded(err)
		case <-time.After(readyWithout):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	m.say(Info, "READY %s", m.recipe.Ready)
	within, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		err := m.command(within, shell(m.recipe.Ready, m.at.State), func(text string) { m.log.add(Debug, m.step, text) })
		if err == nil {
			return nil
		}
		if _, failed := errors.AsType[*ExitError](err); !failed && within.Err() == nil {
			return err
		}
		select {
		case end := <-ended:
			if err := startEnded(end); err != nil {
				return err
			}
		case <-time.After(readyEvery):
		case <-within.Done():
			return cmp.Or(ctx.Err(), fmt.Errorf("the ready command did not succeed within %v: %v", readyWithin, err))
		}
	}
}

// startEnded judges the end of a start command. One that succeeds may have started
// others.
func startEnded(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the start command ended: %w", err)
}

// name gives the result the names of the build.
func (m *making) name(ctx context.Context) error {
	for _, tag := range m.build.Tags {
		if err := m.nameAs(ctx, tag); err != nil {
			return err
		}
	}
	return nil
}

func (m *making) nameAs(ctx context.Context, tag string) error {
	m.b.naming.Lock()
	defer m.b.naming.Unlock()
	t, err := m.b.byID(m.t.ID)
	if err != nil {
		return err
	}
	id, err := m.b.o.Workshop.Keep(ctx, m.sandbox, Kept{Build: m.build.ID, Key: t.Key, Name: Full(t.Name, tag), Replace: t.Tags[tag].Snapshot})
	if err != nil {
		return err
	}
	// The store has noted it in the commit that gave the name; this server learns it.
	_, err = m.change(func(t *Template) {
		t.Tags[tag] = Tag{Build: m.build.ID, Snapshot: id, Memory: m.memory, At: now()}
		t.UpdatedAt = now()
	})
	if errdef.Is(err, errdef.NotFound) { // the template has gone, and nobody has it
		m.spare = append(m.spare, id)
	}
	return err
}

// leave puts away the sandbox.
func (m *making) leave(ctx context.Context) {
	if m.sandbox != "" {
		ctx, cancel := context.WithTimeout(ctx, leaveWithin)
		defer cancel()
		m.b.left.end(ctx, m.sandbox)
		m.sandbox = ""
	}
}

// settle notes how the build has ended, and what its steps have led to. What
// earlier builds had led to is forgotten when this one is ready: its recipe is
// the one that will be built again. It returns when the store has the end of the build: nobody
// else would note that, and a build that comes next must find what this one has left.
func (m *making) settle(ctx context.Context, failed error) {
	ended := now()
	if failed != nil {
		m.say(Error, "%s", failed.Error())
	}
	before := m.t.Snapshots()
	t, err := m.b.changeAtLast(m.t.ID, func(t *Template) error {
		maps.Copy(before, t.Snapshots()) // of each try: one whose answer is lost may have been stored
		cache := slices.Clone(m.results)
		if failed != nil {
			for _, r := range t.Cache {
				if !slices.ContainsFunc(cache, func(x Result) bool { return x.Hash == r.Hash }) {
					cache = append(cache, r)
				}
			}
		}
		t.Cache = bounded(cache)
		x := t.Build(m.build.ID)
		switch {
		case x == nil: // its end is stored already, and it is too old to be remembered
		case failed != nil:
			x.Fail(m.step, failed.Error(), ended)
		default:
			x.Status, x.FinishedAt = Ready, ended
		}
		t.UpdatedAt = ended
		t.Builds = remembered(t.Builds)
		return nil
	})
	m.b.mu.Lock()
	m.b.forgetJournals()
	m.b.mu.Unlock()
	_, elsewhere := store.Elsewhere(err) // another server has taken the template over, and has failed the build
	if err != nil && !elsewhere && !errdef.Is(err, errdef.NotFound) {
		m.b.o.Log.Error("the end of a build could not be stored", "template", m.t.Name, "build", m.build.ID, "err", err)
		return // the server stops: what the build has made is swept when it starts again
	}
	ctx, cancel := context.WithTimeout(ctx, leaveWithin)
	defer cancel()
	needed := t.Snapshots()
	for _, id := range m.spare {
		before[id] = true
	}
	for id := range before {
		if id != "" && !needed[id] {
			m.b.left.drop(ctx, id)
		}
	}
}
