package mitos

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// TestTemplatesAreJudged: what no create would take is not kept.
func TestTemplatesAreJudged(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.MaxTimeout = time.Hour
		o.Judge = func(req supervisor.CreateRequest) error {
			if req.Settings.Timeout != time.Hour || !req.Config.Secure {
				t.Errorf("it is judged as a create with the timeout %s, secure %v", req.Settings.Timeout, req.Config.Secure)
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
