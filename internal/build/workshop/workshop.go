// Package workshop gives builds of templates the sandboxes of the supervisor.
package workshop

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb"
	"github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
	"github.com/drowse-dev/drowse/internal/template"
)

// Sandboxes is what the supervisor does with sandboxes.
type Sandboxes interface {
	Create(ctx context.Context, req supervisor.CreateRequest) (store.Sandbox, error)
	Pause(ctx context.Context, id string, q supervisor.PauseRequest) error
	Resume(ctx context.Context, id string, q supervisor.WakeRequest) (store.Sandbox, error)
	Kill(ctx context.Context, id, actor string) error
	List(ctx context.Context) ([]store.Sandbox, error)
	Acquire(ctx context.Context, id string, access supervisor.Access) (*supervisor.Lease, error)
	EnvdToken(id string) string
}

// Snapshots is what it does with snapshots.
type Snapshots interface {
	TakeSnapshot(ctx context.Context, id string, req supervisor.SnapshotRequest) (store.Snapshot, error)
	Snapshot(key, ref string) (store.Snapshot, error)
	OwnSnapshots() []store.Snapshot
	RemoveResult(ctx context.Context, id, actor string) error
}

// Templates is what it does with templates.
type Templates interface {
	Template(ref string) (templates.Template, error)
	AddTemplate(ctx context.Context, req templates.AddRequest) (templates.Template, error)
}

// actor is who does all this, for the record.
const actor = "build"

// Workshop implements [build.Origins], [build.Workshop] and [build.Yard].
type Workshop struct {
	Sandboxes Sandboxes
	Snapshots Snapshots
	Templates Templates
}

// e2bBase is what E2B's clients begin with where nothing is said. It is "base" here,
// unless there is a template of that name.
const e2bBase = "e2bdev/base"

// Resolve implements [build.Origins].
func (w *Workshop) Resolve(ctx context.Context, base build.Base) (build.Origin, error) {
	ref := base.Template
	if ref == "" {
		ref = base.Image
	}
	t, err := w.Templates.Template(ref)
	if err == nil {
		return ofTemplate(t, ref), nil
	}
	if !errdef.Is(err, errdef.NotFound) {
		return build.Origin{}, err
	}
	if base.Template != "" {
		return w.snapshot(base)
	}
	if strings.TrimSuffix(ref, ":latest") == e2bBase {
		t, err := w.Templates.Template("base")
		return ofTemplate(t, "base, in place of "+ref), err
	}
	if !base.MayFetch {
		return build.Origin{}, errdef.New(errdef.Forbidden, "role_insufficient", "the image %.200q is not on this server, and the API key may not have it fetched", ref).
			WithRemedy("ask for it to be fetched with drowse template pull, or build with a key of the role admin")
	}
	t, err = w.Templates.AddTemplate(ctx, templates.AddRequest{Ref: ref, Login: base.Login, Name: nameFor(ref), Actor: actor})
	return ofTemplate(t, ref), err
}

// SnapshotOf implements [build.Origins].
func (w *Workshop) SnapshotOf(base build.Base) (store.Snapshot, bool) {
	if base.Template == "" {
		return store.Snapshot{}, false
	}
	if _, err := w.Templates.Template(base.Template); !errdef.Is(err, errdef.NotFound) {
		return store.Snapshot{}, false // as Resolve has it
	}
	snap, err := w.named(base)
	return snap, err == nil
}

// noName is what a name of a template cannot have in it.
var noName = lazyregexp.New(`[^a-z0-9_-]`)

// nameFor returns what the template of an image is called that a build fetches. A
// build must not change what a name such as base stands for, because an image in some
// registry is called so: the whole repository is in the name. It is empty for what
// the image is called.
func nameFor(ref string) string {
	named, _, _ := strings.Cut(ref, "@")
	dir := path.Dir(named)
	if dir == "." {
		return ""
	}
	space := noName.ReplaceAllString(strings.ToLower(dir), "-")
	return space[:min(len(space), mostSpace)] + "/" + template.NameFor(named)
}

// mostSpace is how long the first part of such a name may be.
const mostSpace = 64

// ofTemplate returns where sandboxes of a template start.
func ofTemplate(t templates.Template, alias string) build.Origin {
	o := build.Origin{Template: t.ID, Alias: alias}
	if t.Image == nil {
		return o
	}
	if o.State.Workdir = t.Image.Config.WorkingDir; o.State.Workdir == "/" {
		o.State.Workdir = "" // as commands have it
	}
	if t.User != template.User {
		o.State.User = t.User
	}
	return o
}

// snapshot finds the snapshot that a recipe begins with: the result of another
// build, or one that a user took.
func (w *Workshop) snapshot(base build.Base) (build.Origin, error) {
	snap, err := w.named(base)
	if errdef.Is(err, errdef.NotFound) {
		return build.Origin{}, store.ErrTemplateNotFound(base.Template)
	}
	c := snap.Config
	return build.Origin{Snapshot: snap.ID, Alias: cmp.Or(snap.Name, snap.ID), State: build.State{User: c.User, Workdir: c.Workdir, Env: c.Env}}, err
}

func (w *Workshop) named(base build.Base) (store.Snapshot, error) {
	id, err := base.Snapshot(base.Template)
	if err != nil {
		return store.Snapshot{}, err
	}
	return w.Snapshots.Snapshot("", id)
}

// said are the settings that count as they are: none of the server's defaults may end
// or pause a sandbox of a build.
var said = []string{
	"onTimeout", "idleTimeoutSeconds", "onIdle", "maxLifetimeSeconds", "pausedRetentionSeconds", "filesystemFallback",
	"checkpointEverySeconds", "stallAfterSeconds", "refreshOnActivity", "autoResume",
}

// Begin implements [build.Workshop].
func (w *Workshop) Begin(ctx context.Context, from build.Origin, spec build.Spec) (string, error) {
	sb, err := w.Sandboxes.Create(ctx, supervisor.CreateRequest{
		Template: from.Template, Snapshot: from.Snapshot, Actor: actor, Said: said,
		Settings: lifecycle.Settings{Timeout: spec.Most, OnTimeout: lifecycle.Kill, StallAfter: lifecycle.NoLimit},
		Config: store.Config{
			Key: spec.Key, Secure: true, Build: spec.Build, Metadata: map[string]string{"template": spec.Name, "build": spec.Build},
			Limits: store.Limits{CPUs: spec.Limits.CPUs, MemoryMiB: spec.Limits.MemoryMiB},
			Env:    spec.State.Env, User: spec.State.User, Workdir: spec.State.Workdir,
		},
	})
	return sb.ID, err
}

// Rest implements [build.Workshop].
func (w *Workshop) Rest(ctx context.Context, sandbox string, memory bool) error {
	mode := lifecycle.Filesystem
	if memory {
		mode = lifecycle.Memory
	}
	return w.Sandboxes.Pause(ctx, sandbox, supervisor.PauseRequest{Mode: mode, Actor: actor})
}

// Wake implements [build.Workshop].
func (w *Workshop) Wake(ctx context.Context, sandbox string, most time.Duration) error {
	_, err := w.Sandboxes.Resume(ctx, sandbox, supervisor.WakeRequest{Timeout: most, Actor: actor})
	return err
}

// Keep implements [build.Workshop].
func (w *Workshop) Keep(ctx context.Context, sandbox string, as build.Kept) (string, error) {
	snap, err := w.Snapshots.TakeSnapshot(ctx, sandbox, supervisor.SnapshotRequest{Name: as.Name, Replace: as.Replace, Key: as.Key, Build: as.Build, Actor: actor})
	return snap.ID, err
}

// End implements [build.Yard].
func (w *Workshop) End(ctx context.Context, sandbox string) error {
	return unlessGone(w.Sandboxes.Kill(ctx, sandbox, actor))
}

// Drop implements [build.Yard].
func (w *Workshop) Drop(ctx context.Context, snapshot string) error {
	return unlessGone(w.Snapshots.RemoveResult(ctx, snapshot, actor))
}

func unlessGone(err error) error {
	if _, elsewhere := store.Elsewhere(err); elsewhere || errdef.Is(err, errdef.NotFound) {
		return nil
	}
	return err
}

// Left implements [build.Yard].
func (w *Workshop) Left(ctx context.Context) (sandboxes, snapshots []string, err error) {
	list, err := w.Sandboxes.List(ctx)
	for _, sb := range list {
		if sb.Config.Build != "" {
			sandboxes = append(sandboxes, sb.ID)
		}
	}
	for _, snap := range w.Snapshots.OwnSnapshots() {
		if snap.Config.Build != "" {
			snapshots = append(snapshots, snap.ID)
		}
	}
	return sandboxes, snapshots, err
}

// guest does something with the agent of a sandbox. It ends when the sandbox does.
func (w *Workshop) guest(ctx context.Context, sandbox string, do func(ctx context.Context, web *http.Client) error) error {
	lease, err := w.Sandboxes.Acquire(ctx, sandbox, supervisor.Access{Port: agentapi.Port, Actor: actor, Stream: true})
	if err != nil {
		return err
	}
	defer lease.Release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-lease.Cut:
			cancel(ended(lease.Why()))
		case <-ctx.Done():
		}
	}()
	web := agentclient.Client(func(ctx context.Context) (net.Conn, error) { return lease.Dial(ctx, agentapi.Port) })
	err = do(ctx, web)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// ended says why a sandbox does not run any more. A build cannot do what an error of
// a sandbox asks for next.
func ended(why error) error {
	text := why.Error()
	if e, ok := errors.AsType[*errdef.Error](why); ok {
		text = e.Message
	}
	return fmt.Errorf("the sandbox of the build has stopped: %s", text)
}

// mostMessage bounds a message of the agent.
const mostMessage = 128 << 10

// Run implements [build.Workshop]. A command whose call ends early runs on.
func (w *Workshop) Run(ctx context.Context, sandbox string, c build.Command, say func(text string)) error {
	return w.guest(ctx, sandbox, func(ctx context.Context, web *http.Client) error {
		agent := processconnect.NewProcessClient(web, "http://agent", agentpb.Bounded(mostMessage))
		config := &process.ProcessConfig{Cmd: c.Path, Args: c.Args, Envs: c.Env}
		if c.Workdir != "" {
			config.Cwd = new(c.Workdir)
		}
		req := connect.NewRequest(&process.StartRequest{Process: config, Stdin: new(false)})
		w.sign(req.Header(), sandbox, c.User)
		stream, err := agent.Start(ctx, req)
		if err != nil {
			return agentclient.Quote(err)
		}
		defer stream.Close()
		for stream.Receive() {
			event := stream.Msg().GetEvent()
			if event.GetStart() != nil && c.Started != nil {
				c.Started()
			}
			if data := event.GetData(); data != nil {
				say(string(data.GetStdout()) + string(data.GetStderr()))
			}
			if end := event.GetEnd(); end != nil {
				return exit(end)
			}
		}
		err = stream.Err()
		switch {
		case connect.CodeOf(err) == connect.CodeUnauthenticated:
			return &build.UserError{User: c.User}
		case err != nil:
			return agentclient.Quote(err)
		}
		return errors.New("the connection to the command broke off")
	})
}

// exit judges how a command ended.
func exit(end *process.ProcessEvent_EndEvent) error {
	switch {
	case end.GetExited() && end.GetExitCode() == 0:
		return nil
	case end.GetExited():
		return &build.ExitError{Status: fmt.Sprintf("the command ended with exit status %d", end.GetExitCode())}
	}
	return &build.ExitError{Status: "the command was ended: " + agentclient.Quote(errors.New(end.GetStatus())).Error()}
}

// sign makes a request that of a user.
func (w *Workshop) sign(h http.Header, sandbox, user string) {
	h.Set(agentapi.HeaderAccessToken, w.Sandboxes.EnvdToken(sandbox))
	if user != "" {
		h.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
	}
}

// mostAnswer bounds what is read of the agent's answer to an upload.
const mostAnswer = 64 << 10

// Put implements [build.Workshop].
func (w *Workshop) Put(ctx context.Context, sandbox, path string, data io.Reader) error {
	return w.guest(ctx, sandbox, func(ctx context.Context, web *http.Client) error {
		where := url.URL{Scheme: "http", Host: "agent", Path: "/files", RawQuery: url.Values{"path": {path}, "username": {"root"}}.Encode()}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, where.String(), data)
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/octet-stream")
		w.sign(req.Header, sandbox, "root")
		resp, err := web.Do(req)
		if err != nil {
			return agentclient.Quote(err)
		}
		defer resp.Body.Close()
		said, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
		if resp.StatusCode != http.StatusOK {
			return agentclient.Quote(fmt.Errorf("the agent answered %d: %s", resp.StatusCode, said))
		}
		return err
	})
}
