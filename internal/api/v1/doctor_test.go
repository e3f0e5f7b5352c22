package v1

import (
	"context"
	"net/http"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
)

// TestDoctor: the answer is what drowse doctor -o json prints, and only what is
// required makes it not ok.
func TestDoctor(t *testing.T) {
	fine := Finding{Name: "kernel", OK: true, Detail: "Linux"}
	note := Finding{Name: "disk", Detail: "1 GiB free", Remedy: "make room"}
	fail := Finding{Name: "runtime gvisor", Required: true, Detail: "not usable", Remedy: "mend it"}
	for name, c := range map[string]struct {
		found []Finding
		want  string
	}{
		"all is well":     {[]Finding{fine}, `{"ok":true,"findings":[{"name":"kernel","ok":true,"required":false,"detail":"Linux"}]}`},
		"a note":          {[]Finding{note}, `{"ok":true,"findings":[{"name":"disk","ok":false,"required":false,"detail":"1 GiB free","remedy":"make room"}]}`},
		"something fails": {[]Finding{fail, fine}, `{"ok":false,"findings":[{"name":"runtime gvisor","ok":false,"required":true,"detail":"not usable","remedy":"mend it"},{"name":"kernel","ok":true,"required":false,"detail":"Linux"}]}`},
	} {
		w := newWorld(t, func(o *Options) { o.Doctor = func(context.Context) []Finding { return c.found } })
		if a := w.do("GET", "/v1/doctor", "").Is(http.StatusOK); a.Body != c.want {
			t.Errorf("%s: %s, want %s", name, a.Body, c.want)
		}
		w.do("GET", "/v1/doctor?trial=1", "").Is(http.StatusBadRequest)
		for _, key := range []string{apitest.FullKey, apitest.OwnKey, apitest.ReadKey} {
			answer{w.DoAs(key, "GET", "/v1/doctor", "")}.fails(http.StatusForbidden, "role_insufficient", "")
		}
	}
}
