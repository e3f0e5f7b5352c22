package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

func (s *server) takeHold(body string) (agentapi.HeldWork, int) {
	s.t.Helper()
	res, text := s.do("POST", agentapi.PathHolds, strings.NewReader(body), nil)
	var lease agentapi.HeldWork
	if err := json.Unmarshal([]byte(text), &lease); err != nil {
		s.t.Fatalf("%s: %v", text, err)
	}
	return lease, res.StatusCode
}

func TestHolds(t *testing.T) {
	s := newServer(t)
	token := "tok" // is not needed
	s.init(agentapi.InitRequest{AccessToken: &token})
	began := time.Now()
	lease, status := s.takeHold(`{"reason":"training","seconds":60}`)
	if status != http.StatusCreated || lease.ID == "" || lease.Reason != "training" || lease.Since.Before(began.Add(-time.Second)) ||
		lease.Until.Sub(lease.Since) != time.Minute {
		t.Fatalf("%d %+v", status, lease)
	}
	renewed, _ := s.takeHold(`{"id":"` + lease.ID + `","reason":"more training","seconds":7200}`)
	if renewed.ID != lease.ID || !renewed.Since.Equal(lease.Since) || renewed.Reason != "more training" || renewed.Until.Before(lease.Until.Add(time.Hour)) {
		t.Errorf("renewed %+v to %+v", lease, renewed)
	}
	if named, _ := s.takeHold(`{"id":"my.build_1","reason":"x","seconds":0.5}`); named.ID != "my.build_1" {
		t.Errorf("got %+v", named)
	}
	var list []agentapi.HeldWork
	_, body := s.do("GET", agentapi.PathHolds, nil, nil)
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list) == 0 || list[0].ID != lease.ID {
		t.Errorf("%s: %v", body, err)
	}
	if act := s.activity(); len(act.Leases) == 0 || act.Leases[0] != renewed {
		t.Errorf("got %+v", act)
	}
	before := time.Now()
	if res, body := s.do("DELETE", agentapi.PathHolds+"/"+lease.ID, nil, nil); res.StatusCode != http.StatusNoContent {
		t.Errorf("release = %d %s", res.StatusCode, body)
	}
	res, body := s.do("DELETE", agentapi.PathHolds+"/"+lease.ID, nil, nil)
	wantMessage(t, res, body, http.StatusNotFound)
	if act := s.activity(); act.LastEnd.Before(before) {
		t.Errorf("released after %v, LastEnd %v", before, act.LastEnd)
	}
}

func TestHoldsRefused(t *testing.T) {
	s := newServer(t)
	reason := strings.Repeat("r", 200)
	tests := []struct {
		name, body, says string
	}{
		{"no body", ``, "body"},
		{"not JSON", `{`, "body"},
		{"no reason", `{"seconds":60}`, "reason"},
		{"long reason", `{"seconds":60,"reason":"` + reason + `r"}`, "200"},
		{"unprintable", `{"seconds":60,"reason":"a\u001b[2J"}`, "printable"},
		{"no time", `{"reason":"r"}`, "seconds"},
		{"zero", `{"reason":"r","seconds":0}`, "seconds"},
		{"negative", `{"reason":"r","seconds":-1}`, "seconds"},
		{"over a day", `{"reason":"r","seconds":86400.1}`, "86400"},
		{"id with a slash", `{"reason":"r","seconds":1,"id":"a/b"}`, "id"},
		{"id of dots", `{"reason":"r","seconds":1,"id":".."}`, "id"},
		{"long id", `{"reason":"r","seconds":1,"id":"` + reason + `"}`, "id"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, body := s.do("POST", agentapi.PathHolds, strings.NewReader(tt.body), nil)
			wantMessage(t, res, body, http.StatusBadRequest)
			if !strings.Contains(body, tt.says) {
				t.Errorf("%s does not say %q", body, tt.says)
			}
		})
	}
	if _, status := s.takeHold(`{"seconds":86400,"reason":"` + reason + `"}`); status != http.StatusCreated {
		t.Errorf("the most there may be: %d", status)
	}
}

func TestHoldsAreLimited(t *testing.T) {
	s := newServer(t)
	for i := range agentapi.MaxLeases {
		if _, status := s.takeHold(fmt.Sprintf(`{"id":"h%d","reason":"r","seconds":60}`, i)); status != http.StatusCreated {
			t.Fatalf("%d: %d", i, status)
		}
	}
	res, body := s.do("POST", agentapi.PathHolds, strings.NewReader(`{"reason":"r","seconds":60}`), nil)
	wantMessage(t, res, body, http.StatusTooManyRequests)
	if _, status := s.takeHold(`{"id":"h3","reason":"again","seconds":60}`); status != http.StatusCreated {
		t.Errorf("renew one of them: %d", status)
	}
}

// A lease ends by the clock whether or not anybody looks, also asleep.
func TestLeasesRunOut(t *testing.T) {
	ls := newLeases()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	short, _ := ls.take(agentapi.HoldRequest{Reason: "a", Seconds: 10}, now)
	long, _ := ls.take(agentapi.HoldRequest{Reason: "b", Seconds: 3600}, now)
	if list, end := ls.list(now.Add(10*time.Second - 1)); len(list) != 2 || !end.IsZero() {
		t.Errorf("before: %v, %v", list, end)
	}
	list, end := ls.list(now.Add(time.Minute))
	if len(list) != 1 || list[0].ID != long.ID || !end.Equal(short.Until) {
		t.Errorf("after one: %v, %v", list, end)
	}
	if ls.release(long.ID, now.Add(8*time.Hour)) {
		t.Error("released what had run out")
	}
	if list, end := ls.list(now.Add(8 * time.Hour)); len(list) != 0 || !end.Equal(long.Until) {
		t.Errorf("after both: %v, %v", list, end)
	}
}

func TestHoldsOnlyFromInside(t *testing.T) {
	a := New(Options{InitSecret: testSecret})
	tests := []struct {
		remote string
		want   int
	}{
		{"127.0.0.1:4000", 200}, {"127.9.9.9:4000", 200}, {"[::1]:4000", 200}, {"[::ffff:127.0.0.1]:4000", 200},
		{agentapi.HostAddr + ":4000", 403}, {"169.254.77.2:4000", 403}, {"[::ffff:169.254.77.1]:4000", 403}, {"[fe80::1%eth0]:1", 403}, {"", 403}, {"@", 403},
	}
	for _, tt := range tests {
		for _, target := range []string{"GET " + agentapi.PathHolds, "POST " + agentapi.PathHolds, "DELETE " + agentapi.PathHolds + "/x"} {
			method, path, _ := strings.Cut(target, " ")
			r := httptest.NewRequest(method, path, strings.NewReader("{}"))
			r.RemoteAddr = tt.remote
			r.Header.Set(agentapi.HeaderInit, testSecret)
			w := httptest.NewRecorder()
			a.ServeHTTP(w, r)
			if refused := w.Code == http.StatusForbidden; refused != (tt.want == 403) {
				t.Errorf("%s from %q = %d %s", target, tt.remote, w.Code, w.Body)
			}
		}
	}
}
