package ui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// several is what can be done to more than one sandbox at once, with the word for
// those to which it was done.
var several = map[string]struct {
	do   action
	done string
}{
	"pause":  {pauseSandbox, "paused"},
	"resume": {resumeSandbox, "running"},
	"kill":   {killSandbox, "killed, and their data is deleted"},
}

// severalAtOnce bounds how many sandboxes are changed at a time: the others of the
// server go on being served.
const severalAtOnce = 4

// severalTime bounds how long all of them may take. The memory of a large sandbox
// takes a while to write.
const severalTime = 10 * time.Minute

// actOnSeveral does to all chosen sandboxes what a form asks for. One that fails
// holds up no other.
func actOnSeveral(v *visit) error {
	what, ok := several[v.r.PostForm.Get("do")]
	if !ok {
		return missing(v)
	}
	ids := slices.Compact(slices.Sorted(slices.Values(v.r.PostForm["id"])))
	switch {
	case len(ids) == 0:
		return v.done("", "", Path+"/", refusal{http.StatusBadRequest, "no sandbox is chosen", "choose some by the boxes before their names"})
	case len(ids) > perPage:
		return v.done("", "", Path+"/", refusal{http.StatusBadRequest, fmt.Sprintf("%d sandboxes are chosen; %d are allowed at once", len(ids), perPage), "choose fewer"})
	}
	a, err := v.api()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), severalTime)
	defer cancel()
	errs := make([]error, len(ids))
	var g errgroup.Group
	g.SetLimit(severalAtOnce)
	for n, id := range ids {
		g.Go(func() error {
			if ctx.Err() != nil {
				errs[n] = refusal{http.StatusGatewayTimeout, fmt.Sprintf("the others took %s, and this one was not begun", span(severalTime)), "choose it again"}
				return nil
			}
			_, _, errs[n] = what.do(ctx, v, a, id)
			return nil
		})
	}
	_ = g.Wait()
	var failed []failure
	for n, err := range errs {
		if err == nil {
			continue
		}
		p := v.problemOf(err)
		if p.Status == http.StatusUnauthorized {
			return err
		}
		failed = append(failed, failure{ids[n], p})
	}
	v.session.tell(notice{
		Text:   fmt.Sprintf("%d of %d chosen sandboxes are %s.", len(ids)-len(failed), len(ids), what.done),
		Failed: len(failed) > 0, Each: failed,
	})
	v.redirect(v.back(Path + "/"))
	return nil
}
