package mcp

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

const (
	// defaultIdle is how long a sandbox may do nothing before it sleeps, where an
	// agent does not say. A command in progress is not nothing.
	defaultIdle = 5 * time.Minute

	defaultHold    = 10 * time.Minute
	defaultPreview = time.Hour
	defaultListed  = 50
)

// longest is the largest number of seconds that a duration can hold.
const longest = float64(math.MaxInt64 / int64(time.Second))

func seconds(n float64) time.Duration {
	return time.Duration(min(n, longest-1) * float64(time.Second))
}

// sandboxView is a sandbox as agents see it.
type sandboxView struct {
	Sandbox      string            `json:"sandbox" jsonschema:"id; all other tools take it"`
	State        string            `json:"state" jsonschema:"pending, running, paused or terminated; with the change in progress in brackets"`
	Sleep        string            `json:"sleep,omitempty" jsonschema:"how a paused sandbox sleeps: light, and wakes in milliseconds, or deep"`
	Template     string            `json:"template"`
	CreatedAt    string            `json:"created_at"`
	Next         string            `json:"next,omitempty" jsonschema:"what happens to it by itself"`
	AwakeBecause string            `json:"awake_because,omitempty" jsonschema:"the work that keeps it awake"`
	PausedAt     string            `json:"paused_at,omitempty"`
	EndAt        string            `json:"end_at,omitempty" jsonschema:"when its timeout ends"`
	WakesItself  bool              `json:"wakes_itself" jsonschema:"exec, files and traffic wake it when it sleeps; if false, call resume"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	LastError    string            `json:"last_error,omitempty"`
	Ended        string            `json:"ended,omitempty" jsonschema:"why, when and by whom it was ended"`
}

func viewOf(i client.Info) sandboxView {
	v := sandboxView{
		Sandbox: i.ID, State: stateOf(i), Sleep: string(i.Sleep), Template: short(cmp.Or(i.Alias, i.Template)), CreatedAt: instant(i.CreatedAt),
		Next: short(i.Next.Text), AwakeBecause: short(i.AwakeBecause), PausedAt: instant(i.PausedAt), EndAt: instant(i.EndAt),
		WakesItself: i.Settings.AutoResume, Metadata: labels(i.Metadata), LastError: short(i.LastError),
	}
	if i.State != client.Paused {
		v.PausedAt = ""
	}
	if t := i.Tombstone; t != nil {
		v.Ended = epitaph(t)
	}
	return v
}

func epitaph(t *client.Tombstone) string {
	text := fmt.Sprintf("%s at %s", t.Reason, instant(t.At))
	if t.Actor != "" {
		text += " by " + t.Actor
	}
	if t.Detail != "" {
		text += ": " + t.Detail
	}
	return short(text)
}

// instant is a time as agents see it; "" for none.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

type createIn struct {
	Template        string            `json:"template,omitempty" jsonschema:"id or name of a template, as list_templates returns it; left out: base, a Linux with the programs of the host"`
	Snapshot        string            `json:"snapshot,omitempty" jsonschema:"id or name of a snapshot to start from instead of a template, with its memory and files"`
	IdleSeconds     float64           `json:"idle_seconds,omitempty" jsonschema:"sleep after this many seconds without work; left out: 300"`
	LifetimeSeconds float64           `json:"max_lifetime_seconds,omitempty" jsonschema:"delete the sandbox this many seconds after its creation, asleep or not; left out: the server's default"`
	KeepSeconds     float64           `json:"paused_retention_seconds,omitempty" jsonschema:"delete the sandbox once it has slept this many seconds; left out: the server's default"`
	TimeoutSeconds  float64           `json:"timeout_seconds,omitempty" jsonschema:"sleep this many seconds after each start, even if busy; left out: never"`
	CPUs            float64           `json:"cpus,omitempty" jsonschema:"such as 2 or 0.5; left out: the server's default"`
	MemoryMiB       int               `json:"memory_mib,omitempty" jsonschema:"left out: the server's default"`
	DiskMiB         int               `json:"disk_mib,omitempty" jsonschema:"left out: the server's default"`
	NoInternet      bool              `json:"no_internet,omitempty" jsonschema:"block all traffic out of the sandbox"`
	Env             map[string]string `json:"env,omitempty" jsonschema:"environment variables of all commands"`
	Metadata        map[string]string `json:"metadata,omitempty" jsonschema:"labels to find the sandbox by in list_sandboxes"`
}

type listIn struct {
	State    string            `json:"state,omitempty" jsonschema:"only sandboxes in this state; left out: all that have not ended"`
	Metadata map[string]string `json:"metadata,omitempty" jsonschema:"only sandboxes with all these labels"`
	Limit    int               `json:"limit,omitempty" jsonschema:"how many at most, newest first; left out: 50"`
}

type listOut struct {
	Sandboxes []sandboxView `json:"sandboxes" jsonschema:"newest first"`
	Left      int           `json:"left_out" jsonschema:"how many more there are"`
}

type pauseIn struct {
	named
	Mode string `json:"mode,omitempty" jsonschema:"memory keeps processes, memory and files; filesystem keeps files alone and is smaller; left out: memory"`
}

type holdIn struct {
	named
	Reason  string  `json:"reason" jsonschema:"what the hold is for; people see it"`
	Seconds float64 `json:"seconds,omitempty" jsonschema:"how long at most; left out: 600"`
	Hold    string  `json:"hold,omitempty" jsonschema:"id of a hold to extend; left out: a new one"`
}

type holdOut struct {
	Hold  string `json:"hold" jsonschema:"id, for release_hold and to extend it"`
	Until string `json:"until"`
}

type releaseIn struct {
	named
	Hold string `json:"hold" jsonschema:"id of the hold, from hold or why"`
}

type previewIn struct {
	named
	Port    int     `json:"port" jsonschema:"of a server inside the sandbox that listens for HTTP"`
	Path    string  `json:"path,omitempty" jsonschema:"where the link leads, such as /docs; left out: /"`
	Seconds float64 `json:"seconds,omitempty" jsonschema:"how long the link is good, 30 days at most; left out: 3600"`
}

type previewOut struct {
	URL       string `json:"url" jsonschema:"whoever has it reaches this port; it is not shown again"`
	Preview   string `json:"preview" jsonschema:"id of the link"`
	ExpiresAt string `json:"expires_at"`
}

type snapshotIn struct {
	named
	Name string `json:"name,omitempty" jsonschema:"to find it by; left out: none, and the id does"`
}

type snapshotOut struct {
	Snapshot string  `json:"snapshot" jsonschema:"id; create_sandbox takes it, or the name, as snapshot"`
	Name     string  `json:"name,omitempty"`
	Mode     string  `json:"mode" jsonschema:"memory or filesystem"`
	Bytes    int64   `json:"bytes" jsonschema:"what it takes on disk beside what it shares"`
	FrozenMs float64 `json:"frozen_ms" jsonschema:"how long the running sandbox stood still"`
}

type forkIn struct {
	named
	Count int `json:"count,omitempty" jsonschema:"how many copies; left out: 1"`
}

type forkOut struct {
	Children []child `json:"children"`
}

type child struct {
	Sandbox *sandboxView `json:"sandbox,omitempty"`
	Error   *failure     `json:"error,omitempty" jsonschema:"why this copy did not start"`
}

type killOut struct {
	Killed string `json:"killed" jsonschema:"id of the sandbox that has ended"`
}

type releaseOut struct {
	Released string `json:"released" jsonschema:"id of the hold"`
}

// addLife adds the tools for the life of sandboxes.
func addLife(s *Server) {
	add(s, tool{
		name: "create_sandbox", title: "Create a sandbox",
		about: "Create a sandbox, a small Linux machine of its own, and return when it takes commands (well under a second). " +
			"It falls asleep after idle_seconds without work and then costs disk only; the next exec, run_code, file call or request to a preview wakes it with memory, processes and files intact. " +
			"It exists until kill, or until max_lifetime_seconds or paused_retention_seconds end.",
		words: map[string][]string{},
		least: map[string]float64{"idle_seconds": 0, "max_lifetime_seconds": 0, "paused_retention_seconds": 0, "timeout_seconds": 0, "cpus": 0, "memory_mib": 0, "disk_mib": 0},
	}, create)
	add(s, tool{
		name: "list_sandboxes", title: "List sandboxes", reads: true,
		about: "List sandboxes with their state and what happens to each next. Wakes nothing.",
		words: map[string][]string{"state": {"pending", "running", "paused", "terminated"}},
		least: map[string]float64{"limit": 0}, most: map[string]float64{"limit": 500},
	}, list)
	add(s, tool{
		name: "why", title: "Explain a sandbox", reads: true,
		about: "Explain why a sandbox is awake, asleep or gone, what keeps it awake, which clocks run, and what happens next. " +
			"Wakes nothing and does not count as activity. Works for 30 days after a sandbox has ended.",
	}, why)
	add(s, tool{
		name: "hold", title: "Keep a sandbox awake", repeats: true,
		about: "Count a running sandbox as busy for a while, so that it does not fall asleep for want of work, for example while you think or wait for somebody. " +
			"Commands in progress need no hold. It does not wake a sandbox, and a timeout or lifetime still ends. While it is held it costs CPU and memory.",
		least: map[string]float64{"seconds": 0},
	}, hold)
	add(s, tool{
		name: "release_hold", title: "Release a hold", repeats: true,
		about: "End a hold before its time, so that the sandbox may sleep.",
	}, release)
	add(s, tool{
		name: "preview_url", title: "Make a preview link",
		about: "Make a link to a web server inside a sandbox, for people without an API key. Opening it wakes the sandbox; making it wakes nothing. " +
			"The server must listen on the port; it may start later.",
		least: map[string]float64{"port": 1, "seconds": 0}, most: map[string]float64{"port": 65535},
	}, preview)
	add(s, tool{
		name: "snapshot", title: "Take a snapshot",
		about: "Keep the present state of a sandbox, running or asleep, so that create_sandbox can start others from it, and restore goes back to it. A running sandbox stands still for a moment and runs on. " +
			"Snapshots cost disk until delete_snapshot, and outlive the sandbox.",
	}, snapshot)
	add(s, tool{
		name: "fork", title: "Fork a sandbox",
		about: "Start copies of a sandbox that go on from its present state, with its memory, processes, files and settings: to try several ways at once. Each copy costs CPU and memory like any sandbox.",
		least: map[string]float64{"count": 0}, most: map[string]float64{"count": 100},
	}, fork)
	add(s, tool{
		name: "pause", title: "Put a sandbox to sleep",
		about: "Put a sandbox to sleep now. It frees CPU and memory, and keeps everything on disk. Sandboxes do this by themselves when idle, so this is for those whose work is not over but can wait: it stops commands in progress, which go on at the next wake, though their callers are cut off.",
		words: map[string][]string{"mode": {"memory", "filesystem"}},
	}, pause)
	add(s, tool{
		name: "resume", title: "Wake a sandbox", repeats: true,
		about: "Wake a sandbox that sleeps. Needed only where wakes_itself is false. A running sandbox stays as it is.",
	}, resume)
	add(s, tool{
		name: "kill", title: "Kill a sandbox", destroys: true, repeats: true,
		about: "End a sandbox, running or asleep, and delete its memory and files for good. Snapshots and forks of it stay. Do it when a sandbox is not needed any more.",
	}, kill)
}

func create(ctx context.Context, c call, in createIn) (sandboxView, error) {
	if in.Template != "" && in.Snapshot != "" {
		return sandboxView{}, refused("leave out one of them", "a sandbox starts from a template or from a snapshot, not from both")
	}
	o := client.CreateOptions{
		Template: in.Template, Snapshot: in.Snapshot, OnTimeout: client.Pause, OnIdle: client.Pause, AutoResume: new(true),
		Timeout: seconds(in.TimeoutSeconds), IdleTimeout: cmp.Or(seconds(in.IdleSeconds), defaultIdle),
		MaxLifetime: seconds(in.LifetimeSeconds), PausedRetention: seconds(in.KeepSeconds),
		CPUs: in.CPUs, MemoryMiB: in.MemoryMiB, DiskMiB: in.DiskMiB, NoInternet: in.NoInternet, Env: in.Env, Metadata: in.Metadata,
	}
	sb, err := c.Create(ctx, o)
	if err != nil {
		return sandboxView{}, err
	}
	info, err := c.Find(ctx, sb.ID)
	if err != nil { // the agent must learn the id
		return sandboxView{Sandbox: sb.ID, State: string(client.Running), Template: sb.Template, CreatedAt: instant(time.Now()), WakesItself: true}, nil
	}
	return viewOf(info), nil
}

func list(ctx context.Context, c call, in listIn) (listOut, error) {
	o := client.ListOptions{Metadata: in.Metadata}
	if in.State != "" {
		o.States = []client.State{client.State(in.State)}
	}
	all, err := c.List(ctx, o)
	if err != nil {
		return listOut{}, err
	}
	shown := all[:min(len(all), cmp.Or(in.Limit, defaultListed))]
	out := listOut{Sandboxes: []sandboxView{}, Left: len(all) - len(shown)}
	for _, i := range shown {
		out.Sandboxes = append(out.Sandboxes, viewOf(i))
	}
	return out, nil
}

func hold(ctx context.Context, c call, in holdIn) (holdOut, error) {
	h, err := c.Hold(ctx, in.Sandbox, client.HoldOptions{ID: in.Hold, Reason: in.Reason, For: cmp.Or(seconds(in.Seconds), defaultHold)})
	return holdOut{h.ID, instant(h.Until)}, err
}

func release(ctx context.Context, c call, in releaseIn) (releaseOut, error) {
	return releaseOut{in.Hold}, c.ReleaseHold(ctx, in.Sandbox, in.Hold)
}

func preview(ctx context.Context, c call, in previewIn) (previewOut, error) {
	p, err := c.CreatePreview(ctx, in.Sandbox, client.PreviewOptions{Port: in.Port, Path: in.Path, For: cmp.Or(seconds(in.Seconds), defaultPreview)})
	return previewOut{p.URL, p.ID, instant(p.ExpiresAt)}, err
}

func snapshot(ctx context.Context, c call, in snapshotIn) (snapshotOut, error) {
	snap, err := client.NewSnapshots(c.Client).Create(ctx, in.Sandbox, client.SnapshotOptions{Name: in.Name})
	return snapshotOut{snap.ID, short(snap.Name), string(snap.Mode), snap.Bytes, snap.FrozenMs}, err
}

func fork(ctx context.Context, c call, in forkIn) (forkOut, error) {
	children, err := client.NewSnapshots(c.Client).Fork(ctx, in.Sandbox, client.ForkOptions{Count: in.Count})
	if err != nil {
		return forkOut{}, err
	}
	out := forkOut{Children: []child{}}
	for _, ch := range children {
		if ch.Err != nil {
			out.Children = append(out.Children, child{Error: c.explain(ctx, "", ch.Err)})
			continue
		}
		view := viewOf(ch.Info)
		out.Children = append(out.Children, child{Sandbox: &view})
	}
	return out, nil
}

func pause(ctx context.Context, c call, in pauseIn) (sandboxView, error) {
	info, err := c.PauseWith(ctx, in.Sandbox, client.Mode(in.Mode))
	return viewOf(info), err
}

func resume(ctx context.Context, c call, in named) (sandboxView, error) {
	info, err := c.Resume(ctx, in.Sandbox, 0)
	return viewOf(info), err
}

func kill(ctx context.Context, c call, in named) (killOut, error) {
	return killOut{in.Sandbox}, c.Kill(ctx, in.Sandbox)
}

type whyOut struct {
	Sandbox    string      `json:"sandbox"`
	State      string      `json:"state"`
	Sleep      string      `json:"sleep,omitempty" jsonschema:"of a paused one: light, its runtime stands by and a wake takes milliseconds; or deep"`
	Summary    string      `json:"summary" jsonschema:"the state and what happens next, in a sentence"`
	Generation int64       `json:"generation" jsonschema:"how many times it has started or woken, from 1"`
	Busy       bool        `json:"busy" jsonschema:"a hold counts, so that it is not idle"`
	Holds      []holdView  `json:"holds" jsonschema:"work in progress"`
	Clocks     []clockView `json:"clocks" jsonschema:"limits that were set"`
	Events     []eventView `json:"events" jsonschema:"the last ones, newest first"`
	LastError  string      `json:"last_error,omitempty"`
	Rejected   []string    `json:"rejected_traffic,omitempty" jsonschema:"what it did not get through to outside, newest first"`
	Ended      string      `json:"ended,omitempty" jsonschema:"why, when and by whom it was ended"`
}

type holdView struct {
	Hold   string `json:"hold"`
	Kind   string `json:"kind" jsonschema:"request, stream, process, or lease: somebody asked for it"`
	Detail string `json:"detail" jsonschema:"the port, the command or the reason"`
	Since  string `json:"since"`
	Until  string `json:"until,omitempty"`
	Counts bool   `json:"counts" jsonschema:"it keeps the sandbox awake"`
}

type clockView struct {
	Clock    string `json:"clock"`
	Status   string `json:"status" jsonschema:"running, held by work, or stopped in this state"`
	Deadline string `json:"deadline,omitempty"`
	Action   string `json:"action" jsonschema:"what its end does"`
}

type eventView struct {
	At    string `json:"at"`
	Type  string `json:"type"`
	Cause string `json:"cause,omitempty"`
	Actor string `json:"actor,omitempty"`
}

// mostShown bounds lists of what a sandbox says of itself.
const mostShown = 20

func why(ctx context.Context, c call, in named) (whyOut, error) {
	x, err := c.Explain(ctx, in.Sandbox)
	if err != nil {
		return whyOut{}, err
	}
	out := whyOut{
		Sandbox: x.Sandbox, State: stateOf(client.Info{State: x.State, Phase: x.Phase}), Sleep: string(x.Sleep), Generation: x.Generation, Busy: x.Busy, LastError: short(x.LastError),
		Holds: []holdView{}, Clocks: []clockView{}, Events: []eventView{},
	}
	out.Summary = fmt.Sprintf("%s is %s; next: %s", x.Sandbox, out.State, short(x.Next.Text))
	if x.Tombstone != nil {
		out.Ended = epitaph(x.Tombstone)
		out.Summary = fmt.Sprintf("%s has ended: %s", x.Sandbox, out.Ended)
	}
	for _, h := range x.Holds[:min(len(x.Holds), mostShown)] {
		out.Holds = append(out.Holds, holdView{short(h.ID), string(h.Kind), short(h.Detail), instant(h.Since), instant(h.Until), h.Counts})
	}
	for _, k := range x.Clocks {
		if k.Status != client.ClockOff {
			out.Clocks = append(out.Clocks, clockView{string(k.Name), string(k.Status), instant(k.Deadline), string(k.Action)})
		}
	}
	for _, e := range x.Transitions[:min(len(x.Transitions), mostShown)] {
		out.Events = append(out.Events, eventView{instant(e.Time), short(e.Type), short(e.Cause), short(e.Actor)})
	}
	for _, r := range x.Refusals[:min(len(x.Refusals), mostShown)] {
		out.Rejected = append(out.Rejected, short(strings.Join([]string{instant(r.At), r.Target, r.Reason}, " ")))
	}
	return out, nil
}
