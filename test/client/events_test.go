package client_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/drowse-dev/drowse/client"
)

func TestEvents(t *testing.T) {
	c, fake := newServer(t)
	ctx := t.Context()
	a, b := create(t, c, client.CreateOptions{}), create(t, c, client.CreateOptions{})
	if err := c.Pause(ctx, a.ID); err != nil {
		t.Fatal(err)
	}
	fake.PageSize = 2
	var types []string
	for after := int64(0); ; {
		page, err := c.Events(ctx, client.EventOptions{Sandbox: a.ID, After: after})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Events) == 0 {
			break
		}
		after = page.Next
		for _, e := range page.Events {
			types = append(types, e.Type)
			if e.Sandbox != a.ID || e.Time.IsZero() || len(e.Raw) == 0 {
				t.Errorf("got %+v", e)
			}
			if e.Type == "paused" && (e.From != "pausing" || e.To != "paused" || e.Bytes == 0 || e.Cause != "call" || e.Actor == "" || e.Operation == "") {
				t.Errorf("got %+v", e)
			}
		}
	}
	if want := []string{"created", "running", "pausing", "paused"}; !slices.Equal(types, want) {
		t.Errorf("got %v, want %v", types, want)
	}
	page, err := c.Events(ctx, client.EventOptions{After: 2, Limit: 100})
	if err != nil || len(page.Events) != 4 || page.Events[0].Sandbox != b.ID {
		t.Errorf("got %+v, %v", page, err)
	}
	for _, o := range []client.EventOptions{{Limit: -1}, {After: -2}, {Sandbox: "A"}} {
		if _, err := c.Events(ctx, o); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%+v: got %v, want ErrInvalid", o, err)
		}
	}
	if _, err := c.Events(ctx, client.EventOptions{Sandbox: "nosuch"}); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

// TestFollow sees what was and then what happens, and ends with its caller.
func TestFollow(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{})
	var types []string
	for e, err := range c.Follow(t.Context(), client.EventOptions{Sandbox: sb.ID}) {
		if err != nil {
			t.Fatal(err)
		}
		types = append(types, e.Type)
		if e.Type == "running" {
			if err := c.Kill(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
		}
		if e.Type == client.EventTerminated {
			break
		}
	}
	if want := []string{"created", "running", "terminated"}; !slices.Equal(types, want) {
		t.Errorf("got %v, want %v", types, want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range c.Follow(ctx, client.EventOptions{After: 2}) {
		cancel()
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("got %v, want Canceled", last)
	}
}
