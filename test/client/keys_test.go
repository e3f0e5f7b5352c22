package client_test

import (
	"errors"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

func TestKeys(t *testing.T) {
	c, _ := newServer(t)
	ctx := t.Context()
	limits := client.KeyLimits{MaxRunning: 2, MaxSandboxes: 5, MaxMemoryMiB: 4096, MaxDiskMiB: 50_000, MaxRate: 100}
	made, err := c.CreateKey(ctx, client.KeyOptions{Name: "ci", Role: client.RoleOwn, For: time.Hour, Limits: limits})
	if err != nil || made.Text == "" || made.Name != "ci" || made.Role != client.RoleOwn || made.Limits != limits || made.ExpiresAt.Sub(made.CreatedAt) != time.Hour {
		t.Fatalf("made %+v, %v", made, err)
	}
	if k, err := c.CreateKey(ctx, client.KeyOptions{Name: "plain"}); err != nil || k.Role != client.RoleFull || !k.ExpiresAt.IsZero() || k.Limits != (client.KeyLimits{}) {
		t.Errorf("by default: %+v, %v", k, err)
	}

	own, err := client.New(client.Options{URL: c.URL(), APIKey: made.Text})
	if err != nil {
		t.Fatal(err)
	}
	sb := create(t, own, client.CreateOptions{})
	if info, err := own.Find(ctx, sb.ID); err != nil || info.Key != made.ID {
		t.Errorf("its sandbox is %+v, %v", info, err)
	}
	if _, err := own.Keys(ctx); !errors.Is(err, client.ErrForbidden) {
		t.Errorf("keys for a key of role own: %v, want ErrForbidden", err)
	}
	list, err := c.Keys(ctx)
	if err != nil || len(list) != 2 || list[0].ID != made.ID || list[0].Text != "" || list[0].LastUsedAt.IsZero() {
		t.Fatalf("listed %+v, %v", list, err)
	}
	if list[0].Use.Running != 1 || list[0].Use.Sandboxes != 1 || list[0].Use.MemoryMiB == 0 || list[0].Use.DiskMiB == 0 {
		t.Errorf("its use is %+v", list[0].Use)
	}

	limits.MaxRate, limits.MaxRunning = 1, 0
	if k, err := client.LimitKey(ctx, c, made.ID, client.KeyLimitsChange{MaxRate: new(1), MaxRunning: new(0)}); err != nil || k.Limits != limits || k.Name != "ci" {
		t.Errorf("with other limits: %+v, %v", k, err)
	}
	if _, err := client.LimitKey(ctx, c, "nobody", client.KeyLimitsChange{}); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("limits of no key: %v, want ErrNotFound", err)
	}

	if err := c.RevokeKey(ctx, made.ID); err != nil {
		t.Error(err)
	}
	if _, err := own.Find(ctx, sb.ID); !errors.Is(err, client.ErrUnauthorized) {
		t.Errorf("with a revoked key: %v, want ErrUnauthorized", err)
	}
	if err := c.RevokeKey(ctx, made.ID); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("again: %v, want ErrNotFound", err)
	}
	if _, err := c.CreateKey(ctx, client.KeyOptions{}); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("without a name: %v, want ErrInvalid", err)
	}
}
