package cli

import (
	"fmt"
	"testing"

	"github.com/drowse-dev/drowse/client"
)

// TestNextSteps has the same class of error say another next step by its code: it
// helps nobody to try again what stays as it is.
func TestNextSteps(t *testing.T) {
	in := map[string]any{"sandbox": "i0abc"}
	for _, c := range []struct {
		err  client.Error
		code int
		step string
	}{
		{client.Error{Status: 503, Code: "resume_failed", Context: in}, exitFailure, "try again in a moment"},
		{client.Error{Status: 503, Code: "checkpoint_damaged", Context: in}, exitFailure, "drowse why i0abc shows what is damaged"},
		{client.Error{Status: 503, Code: "checkpoint_unreadable"}, exitFailure, "drowse why ID shows why it cannot wake"},
		{client.Error{Status: 409, Code: "not_running", Context: in}, exitConflict, "wake it with: drowse resume i0abc"},
		{client.Error{Status: 404, Code: "timeout_expired", Remediation: "be quick", Context: map[string]any{"sandbox": "i0abc", "endedAt": "t"}},
			exitNotFound, "be quick; drowse why i0abc shows what ended it"},
	} {
		if code, step := explain(fmt.Errorf("do it: %w", &c.err)); code != c.code || step != c.step {
			t.Errorf("%s: exit code %d, step %q; want %d, %q", c.err.Code, code, step, c.code, c.step)
		}
	}
}
