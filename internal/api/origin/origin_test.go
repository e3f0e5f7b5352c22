package origin

import (
	"context"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
)

// rebuilt is a name that gets another snapshot each time a sandbox was to start from it,
// as often as it says.
type rebuilt struct {
	is    []string
	tries int
}

func (r *rebuilt) Template(ref string) (templates.Template, error) {
	return templates.Template{}, errdef.New(errdef.NotFound, "template_not_found", "no template %s", ref)
}

func (r *rebuilt) Snapshot(_, ref string) (store.Snapshot, error) {
	if ref == "app" && len(r.is) > 0 {
		return store.Snapshot{ID: r.is[0]}, nil
	}
	return store.Snapshot{}, store.ErrSnapshotNotFound(ref)
}

func (r *rebuilt) Create(_ context.Context, req supervisor.CreateRequest) (store.Sandbox, error) {
	if r.tries++; len(r.is) > 1 {
		r.is = r.is[1:]
		return store.Sandbox{}, store.ErrSnapshotGone("i1")
	}
	return store.Sandbox{ID: req.Snapshot}, nil
}

// TestCreateFromWhatIsRebuilt: a name that gets another snapshot while a sandbox starts
// from it is looked up once more.
func TestCreateFromWhatIsRebuilt(t *testing.T) {
	for _, c := range []struct {
		is         []string
		want, code string
		tries      int
	}{
		{[]string{"s1"}, "s1", "", 1},
		{[]string{"s1", "s2"}, "s2", "", 2},
		{[]string{"s1", "s2", "s3"}, "", "snapshot_gone", 2},
	} {
		r := &rebuilt{is: c.is}
		o := Origins{Templates: r, Snapshots: r}
		sb, err := o.Create(t.Context(), r, store.Key{}, "", supervisor.CreateRequest{Template: "app"})
		if sb.ID != c.want || errdef.CodeOf(err) != c.code || r.tries != c.tries {
			t.Errorf("%q: %q, %v after %d tries; want %q, %q after %d", c.is, sb.ID, err, r.tries, c.want, c.code, c.tries)
		}
	}
}
