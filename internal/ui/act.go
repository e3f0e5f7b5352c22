package ui

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// action is what a form of a sandbox's page does. It returns what to tell, and where
// to go on if not where the form was.
type action func(ctx context.Context, v *visit, a api, id string) (told, next string, err error)

var actions = map[string]action{
	"pause":   pauseSandbox,
	"resume":  resumeSandbox,
	"kill":    killSandbox,
	"timeout": setTimeout,
	"hold":    holdSandbox,
	"release": releaseHold,
	"fork":    forkSandbox,

	"snapshot":       takeSnapshot,
	"restore":        restoreSandbox,
	"preview":        makePreview,
	"revoke-preview": revokePreview,
}

// act does what a form asks for. It goes on though the browser is closed: what was
// asked for should not stop half-way.
func act(v *visit) error {
	do, ok := actions[v.r.PathValue("action")]
	if !ok {
		return missing(v)
	}
	id := v.r.PathValue("id")
	a, err := v.api()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), actTime)
	defer cancel()
	told, next, err := do(ctx, v, a, id)
	return v.done(told, next, Path+"/sandboxes/"+url.PathEscape(id), err)
}

// actTime bounds an action.
const actTime = 2 * time.Minute

// done goes on after an action: to next, or else where the form was, and tells what
// became of it.
func (v *visit) done(told, next, otherwise string, err error) error {
	switch {
	case err == nil && told != "":
		v.session.tell(notice{Text: told})
	case err != nil:
		p := v.problemOf(err)
		if p.Status == http.StatusUnauthorized {
			return err
		}
		v.session.tell(notice{Failed: true, Text: p.Message, Step: p.Step})
		next = ""
	}
	if next == "" {
		next = v.back(otherwise)
	}
	v.redirect(next)
	return nil
}

func onSandbox(id, rest string) string { return "/v1/sandboxes/" + url.PathEscape(id) + rest }

func pauseSandbox(ctx context.Context, v *visit, a api, id string) (string, string, error) {
	body := map[string]any{}
	if v.r.PostForm.Get("mode") != "" {
		body["mode"] = v.r.PostForm.Get("mode")
	}
	return id + " is paused.", "", a.call(ctx, http.MethodPost, onSandbox(id, "/pause"), nil, body, nil)
}

func resumeSandbox(ctx context.Context, _ *visit, a api, id string) (string, string, error) {
	return id + " is running.", "", a.call(ctx, http.MethodPost, onSandbox(id, "/resume"), nil, nil, nil)
}

func killSandbox(ctx context.Context, _ *visit, a api, id string) (string, string, error) {
	return id + " has ended, and its data is deleted.", Path + "/", a.call(ctx, http.MethodDelete, onSandbox(id, ""), nil, nil, nil)
}

func setTimeout(ctx context.Context, v *visit, a api, id string) (string, string, error) {
	d, err := v.duration("for")
	if err != nil {
		return "", "", err
	}
	return fmt.Sprintf("The timeout of %s ends in %s.", id, span(d)), "",
		a.call(ctx, http.MethodPost, onSandbox(id, "/timeout"), nil, map[string]any{"timeoutSeconds": d.Seconds()}, nil)
}

func holdSandbox(ctx context.Context, v *visit, a api, id string) (string, string, error) {
	d, err := v.duration("for")
	if err != nil {
		return "", "", err
	}
	reason := strings.TrimSpace(v.r.PostForm.Get("reason"))
	if reason == "" {
		reason = "held from the dashboard"
	}
	_, err = a.Hold(ctx, id, client.HoldOptions{Reason: reason, For: d})
	return fmt.Sprintf("%s counts as busy for %s.", id, span(d)), "", err
}

func releaseHold(ctx context.Context, v *visit, a api, id string) (string, string, error) {
	return "The hold is released.", "", a.ReleaseHold(ctx, id, v.r.PostForm.Get("hold"))
}

func forkSandbox(ctx context.Context, v *visit, a api, id string) (string, string, error) {
	n, err := v.count("count", 1)
	if err != nil {
		return "", "", err
	}
	children, err := client.NewSnapshots(a.Client).Fork(ctx, id, client.ForkOptions{Count: n})
	if err != nil {
		return "", "", err
	}
	var ids []string
	var failed error
	for _, c := range children {
		if c.Err != nil {
			failed = c.Err
			continue
		}
		ids = append(ids, c.Sandbox.ID)
	}
	switch {
	case failed != nil && len(ids) == 0:
		return "", "", failed
	case failed != nil:
		p := v.problemOf(failed)
		v.session.tell(notice{Failed: true, Text: fmt.Sprintf("%d of %d forks did not start: %s", n-len(ids), n, p.Message), Step: p.Step})
	case n == 1:
		return "This is " + ids[0] + ", a fork of " + id + ".", Path + "/sandboxes/" + ids[0], nil
	}
	return fmt.Sprintf("%d sandboxes go on from what %s is now: %s.", len(ids), id, strings.Join(ids, ", ")), "", nil
}

// duration reads a field that is a Go duration, such as 90s or 1h30m.
func (v *visit) duration(field string) (time.Duration, error) {
	return durationOf(strings.TrimSpace(v.r.PostForm.Get(field)))
}

func durationOf(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, refusal{http.StatusBadRequest, fmt.Sprintf("%.40q is not a duration", text), "write a number and a unit, such as 90s, 15m or 2h"}
	}
	return d, nil
}

// count reads a field that is a whole number; an empty one is otherwise.
func (v *visit) count(field string, otherwise int) (int, error) {
	text := strings.TrimSpace(v.r.PostForm.Get(field))
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, refusal{http.StatusBadRequest, fmt.Sprintf("%.40q is not a whole number", text), "write digits only"}
	}
	return n, nil
}

// number reads one with fractions; 0 for none.
func (v *visit) number(field string) (float64, error) {
	text := strings.TrimSpace(v.r.PostForm.Get(field))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0) {
		return 0, refusal{http.StatusBadRequest, fmt.Sprintf("%.40q is not a number above 0", text), "write one such as 2 or 0.5"}
	}
	return n, nil
}
