package workshop

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
)

// catalog is templates by name. Those in far are fetched.
type catalog struct {
	here, far map[string]templates.Template
	fetched   []templates.AddRequest
}

func (c *catalog) Template(ref string) (templates.Template, error) {
	t, ok := c.here[ref]
	if !ok {
		return t, store.ErrTemplateNotFound(ref)
	}
	return t, nil
}

func (c *catalog) AddTemplate(_ context.Context, req templates.AddRequest) (templates.Template, error) {
	c.fetched = append(c.fetched, req)
	t, ok := c.far[req.Ref]
	if !ok {
		return t, errors.New("no such image")
	}
	return t, nil
}

// shelf is snapshots by name.
type shelf struct {
	Snapshots
	named map[string]store.Snapshot
}

func (s shelf) Snapshot(_, ref string) (store.Snapshot, error) {
	snap, ok := s.named[ref]
	if !ok {
		return snap, store.ErrSnapshotNotFound(ref)
	}
	return snap, nil
}

func TestWhatARecipeBeginsWith(t *testing.T) {
	plain := templates.Template{ID: "base1", User: "user"}
	mine := templates.Template{ID: "img1", User: "app", Image: &image.Image{Config: image.Configuration{WorkingDir: "/app"}}}
	root := templates.Template{ID: "img2", User: "user", Image: &image.Image{Config: image.Configuration{WorkingDir: "/"}}}
	state := build.State{User: "ada", Workdir: "/srv", Env: map[string]string{"A": "b"}}
	snap := store.Snapshot{ID: "s1", Name: "taken", Key: "k1", Config: store.Config{User: "ada", Workdir: "/srv", Env: state.Env}}
	knows := func(ref string) (string, error) {
		if ref != "Taken:default" {
			return "", store.ErrSnapshotNotFound(ref)
		}
		return "s1", nil
	}
	for name, c := range map[string]struct {
		base    build.Base
		want    build.Origin
		code    string
		fetched bool
	}{
		"a template":               {base: build.Base{Template: "base"}, want: build.Origin{Template: "base1", Alias: "base"}},
		"one of an image":          {base: build.Base{Template: "mine"}, want: build.Origin{Template: "img1", Alias: "mine", State: build.State{User: "app", Workdir: "/app"}}},
		"an image that is here":    {base: build.Base{Image: "mine"}, want: build.Origin{Template: "img1", Alias: "mine", State: build.State{User: "app", Workdir: "/app"}}},
		"one that runs in /":       {base: build.Base{Image: "root"}, want: build.Origin{Template: "img2", Alias: "root"}},
		"an image to be fetched":   {base: build.Base{Image: "far:1", MayFetch: true}, want: build.Origin{Template: "img1", Alias: "far:1", State: build.State{User: "app", Workdir: "/app"}}, fetched: true},
		"with a login":             {base: build.Base{Image: "far:1", MayFetch: true, Login: &image.Login{User: "me"}}, want: build.Origin{Template: "img1", Alias: "far:1", State: build.State{User: "app", Workdir: "/app"}}, fetched: true},
		"one that may not be":      {base: build.Base{Image: "far:1"}, code: "role_insufficient"},
		"E2B's own base":           {base: build.Base{Image: "e2bdev/base"}, want: build.Origin{Template: "base1", Alias: "base, in place of e2bdev/base"}},
		"with its tag":             {base: build.Base{Image: "e2bdev/base:latest"}, want: build.Origin{Template: "base1", Alias: "base, in place of e2bdev/base:latest"}},
		"a snapshot":               {base: build.Base{Template: "Taken:default", Snapshot: knows}, want: build.Origin{Snapshot: "s1", Alias: "taken", State: state}},
		"another key's":            {base: build.Base{Template: "taken", Snapshot: knows}, code: "template_not_found"},
		"nothing":                  {base: build.Base{Template: "nothing", MayFetch: true, Snapshot: knows}, code: "template_not_found"},
		"a snapshot is no image":   {base: build.Base{Image: "taken"}, code: "role_insufficient"},
		"a template to be fetched": {base: build.Base{Template: "far:1", MayFetch: true, Snapshot: knows}, code: "template_not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			all := &catalog{here: map[string]templates.Template{"base": plain, "mine": mine, "root": root}, far: map[string]templates.Template{"far:1": mine}}
			w := &Workshop{Templates: all, Snapshots: shelf{named: map[string]store.Snapshot{"s1": snap}}}
			got, err := w.Resolve(t.Context(), c.base)
			if e, _ := errors.AsType[*errdef.Error](err); (c.code != "") != (err != nil) || c.code != "" && e.Code != c.code {
				t.Fatalf("%v, want code %q", err, c.code)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if (len(all.fetched) > 0) != c.fetched || c.fetched && all.fetched[0].Login != c.base.Login {
				t.Errorf("fetched %+v", all.fetched)
			}
		})
	}
}

// TestNamesOfFetchedImages: no image in a registry takes over a name that others use.
func TestNamesOfFetchedImages(t *testing.T) {
	long := strings.Repeat("x", 70)
	for ref, want := range map[string]string{
		"python:3.12": "", "python": "", "python@sha256:aa": "",
		"owner/base": "owner/base", "owner/base:latest": "owner/base", "ghcr.io/Owner/base:V1": "ghcr-io-owner/base:v1",
		"localhost:5000/base@sha256:aa": "localhost-5000/base", "registry.test/" + long + "/a": "registry-test-" + long[:50] + "/a",
	} {
		if got := nameFor(ref); got != want {
			t.Errorf("%s is called %q, want %q", ref, got, want)
		}
	}
}

func TestHowACommandEnded(t *testing.T) {
	for _, c := range []struct {
		end  *process.ProcessEvent_EndEvent
		want string
	}{
		{&process.ProcessEvent_EndEvent{Exited: true}, ""},
		{&process.ProcessEvent_EndEvent{Exited: true, ExitCode: 3}, "the command ended with exit status 3"},
		{&process.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: killed\x1b[0m"}, "the command was ended: signal: killed?[0m"},
		{&process.ProcessEvent_EndEvent{}, "the command was ended: "},
	} {
		err := exit(c.end)
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("%v: got %v, want %q", c.end, err, c.want)
		}
		if _, failed := errors.AsType[*build.ExitError](err); failed != (c.want != "") {
			t.Errorf("%v: %v is of another type", c.end, err)
		}
	}
}
