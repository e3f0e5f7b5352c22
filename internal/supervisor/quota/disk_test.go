package quota

import (
	"math"
	"testing"

	"github.com/drowse-dev/drowse/internal/layer"
)

// TestNamesAreLimitedWithoutALimit: a sandbox whose files may take all of the disk
// may not have more names than a pause can list.
func TestNamesAreLimitedWithoutALimit(t *testing.T) {
	limit := OfSandbox(0)
	if limit.Bytes != math.MaxInt64 || limit.Files >= layer.MaxNames || limit.NameBytes >= layer.MaxNameBytes {
		t.Errorf("the limit is %+v", limit)
	}
	if more := Slack(layer.Usage{Files: limit.Files + 1}, limit); more.Files >= layer.MaxNames || more.Bytes < 0 {
		t.Errorf("with slack, the limit is %+v", more)
	}
	if huge := OfSandbox(1 << 30); huge.Files != limit.Files {
		t.Errorf("a large limit allows %d names", huge.Files)
	}
}
