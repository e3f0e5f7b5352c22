package mitos

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// TestPosturesAreBounded: what keys said of templates was kept until a restart: 200
// requests took 650 MiB.
func TestPosturesAreBounded(t *testing.T) {
	room := held.New()
	gone := map[string]bool{}
	ps := newPostures(room, func(_, template string) bool { return gone[template] })
	at := time.Unix(1e9, 0)
	for i := range 2 * maxPostures {
		at = at.Add(time.Second)
		if err := ps.set("k", fmt.Sprint("t", i), posture{allow: []string{"192.0.2.1"}}, at); err != nil {
			t.Fatal(err)
		}
	}
	one := (posture{allow: []string{"192.0.2.1"}}).cost("t100")
	if n := room.Of("k").Kept; len(ps.all) != maxPostures || n > maxPostures*one {
		t.Errorf("%d are kept, %d bytes", len(ps.all), n)
	}
	if _, known := ps.use("k", "t0"); known {
		t.Error("the oldest is kept")
	}
	last := fmt.Sprint("t", 2*maxPostures-1)
	gone[last] = true
	at = at.Add(2 * tidyEvery)
	_ = ps.set("other", "t", posture{}, at)
	if _, known := ps.use("k", last); known || len(ps.all) != maxPostures {
		t.Errorf("what was said of a template that is gone: %v; %d are kept", known, len(ps.all))
	}
	_ = ps.set("other", "t", posture{}, at.Add(keepFor+time.Minute))
	if h := room.All(); len(ps.all) != 1 || h.Kept != (posture{}).cost("t") {
		t.Errorf("after a day %d are kept, %d bytes", len(ps.all), h.Kept)
	}
	// Of one key all of it is bounded, however much each says.
	large := posture{allow: []string{strings.Repeat("x", 1<<20)}}
	refused := 0
	for i := range 100 {
		if errdef.Is(ps.set("k", fmt.Sprint("l", i), large, at), errdef.Exhausted) {
			refused++
		}
	}
	if n := room.Of("k").Kept; refused == 0 || n > 32<<20 {
		t.Errorf("%d are refused, %d bytes kept", refused, n)
	}
	if err := ps.set("other", "l", large, at); err != nil {
		t.Errorf("another key: %v", err)
	}
}

// TestTemplatesAreJudged: what no create would take is not kept.
func TestTemplatesAreJudged(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.MaxTimeout = time.Hour
		o.Judge = func(req supervisor.CreateRequest) error {
			if req.Settings.Timeout != time.Hour {
				t.Errorf("it is judged as a create with the timeout %s", req.Settings.Timeout)
			}
			if len(req.Config.AllowOut) > 256 {
				return errdef.New(errdef.Invalid, "network_invalid", "there are too many rules")
			}
			return nil
		}
	})
	many := `"192.0.2.1"` + strings.Repeat(`,"192.0.2.1"`, 300)
	fails(t, w.do(apitest.GoodKey, post, "/v1/templates", `{"id":"base","network":{"allow_cidrs":[`+many+`]}}`), http.StatusBadRequest, "invalid_input", "too many rules")
	fails(t, w.do(apitest.GoodKey, post, "/v1/fork", `{"template":"base","id":"a"}`), http.StatusNotFound, "not_found", "")
}
