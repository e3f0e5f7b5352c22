package v1

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
)

// TestAudit reads who did what, in whole and in part.
func TestAudit(t *testing.T) {
	w := newWorld(t)
	one := w.create(`{}`)
	w.do("GET", base+"/"+one, "").Is(http.StatusOK) // a look
	w.DoAs(apitest.OwnKey, "POST", base, `{}`).Is(http.StatusCreated)
	w.DoAs(apitest.ReadKey, "DELETE", base+"/"+one, "").Is(http.StatusForbidden)
	w.DoAs("e2b_0000", "GET", base, "").Is(http.StatusUnauthorized)
	w.do("POST", base+"/"+one+"/pause", `{}`).Is(http.StatusOK)

	entries := func(query string) string {
		t.Helper()
		var b strings.Builder
		for _, e := range list(w.do("GET", "/v1/audit"+query, "").Is(http.StatusOK).Object()["entries"]) {
			role := "nobody"
			if key, ok := e["key"].(map[string]any); ok {
				role = key["role"].(string)
			}
			about := "-"
			if e["sandbox"] == one {
				about = "one"
			}
			fmt.Fprintf(&b, "%v %s %v %v %s\n", e["seq"], role, e["method"], e["status"], about)
		}
		return b.String()
	}
	for query, want := range map[string]string{
		"":                 "1 admin POST 201 one\n2 own POST 201 -\n3 read DELETE 403 -\n4 nobody GET 401 -\n5 admin POST 200 one\n",
		"?limit=1":         "5 admin POST 200 one\n",
		"?limit=2&after=0": "1 admin POST 201 one\n2 own POST 201 -\n",
		"?after=4":         "5 admin POST 200 one\n",
		"?after=5":         "",
		"?sandbox=" + one:  "1 admin POST 201 one\n5 admin POST 200 one\n",
		"?sandbox=ix":      "",
		"?limit=1&after=1&key=" + apitest.KeyIDOf(goodKey): "5 admin POST 200 one\n",
	} {
		if got := entries(query); got != want {
			t.Errorf("%s: it has\n%swant\n%s", query, got, want)
		}
	}
	if next := w.do("GET", "/v1/audit?after=2&limit=1", "").Is(http.StatusOK).Object()["next"]; fmt.Sprint(next) != "3" {
		t.Errorf("next is %v, want 3", next)
	}
	for _, query := range []string{"?limit=0", "?limit=1001", "?after=-1", "?after=x", "?user=1"} {
		w.do("GET", "/v1/audit"+query, "").Is(http.StatusBadRequest)
	}
	answer{w.DoAs(apitest.FullKey, "GET", "/v1/audit", "")}.fails(http.StatusForbidden, "role_insufficient", "")
}
