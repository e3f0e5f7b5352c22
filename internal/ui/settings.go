package ui

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

type settingsData struct {
	Head    head
	Fields  []string
	Said    url.Values // what the form has, and what it had when it was made ("was-")
	Problem *problem
	// Odd reports that some metadata cannot be written as lines of key=value. The form
	// shows it and does not change it.
	Odd bool
}

// setting is a field of the form that changes a sandbox.
type setting struct {
	show func(client.Info) string
	set  func(o *client.PatchOptions, text string) error
}

// wasPrefix begins the names of the fields that keep what the form was made with, so
// that only what somebody has changed in it is sent: the sandbox may be changed from
// elsewhere at the same time.
const wasPrefix = "was-"

var settings = map[string]setting{
	"onTimeout": {
		func(i client.Info) string { return string(i.Settings.OnTimeout) },
		func(o *client.PatchOptions, text string) error { o.OnTimeout = new(client.Action(text)); return nil },
	},
	"onIdle": {
		func(i client.Info) string { return string(i.Settings.OnIdle) },
		func(o *client.PatchOptions, text string) error { o.OnIdle = new(client.Action(text)); return nil },
	},
	"idleTimeout": limitSetting(func(i client.Info) time.Duration { return i.Settings.IdleTimeout },
		func(o *client.PatchOptions, d *time.Duration) { o.IdleTimeout = d }),
	"maxLifetime": limitSetting(func(i client.Info) time.Duration { return i.Settings.MaxLifetime },
		func(o *client.PatchOptions, d *time.Duration) { o.MaxLifetime = d }),
	"pausedRetention": limitSetting(func(i client.Info) time.Duration { return i.Settings.PausedRetention },
		func(o *client.PatchOptions, d *time.Duration) { o.PausedRetention = d }),
	"checkpointEvery": limitSetting(func(i client.Info) time.Duration { return i.Settings.CheckpointEvery },
		func(o *client.PatchOptions, d *time.Duration) { o.CheckpointEvery = d }),
	"autoResume": yesOrNo(func(i client.Info) bool { return i.Settings.AutoResume },
		func(o *client.PatchOptions, yes *bool) { o.AutoResume = yes }),
	"filesystemFallback": yesOrNo(func(i client.Info) bool { return i.Settings.FilesystemFallback },
		func(o *client.PatchOptions, yes *bool) { o.FilesystemFallback = yes }),
	"internet": yesOrNo(func(i client.Info) bool { return i.AllowInternet == nil || *i.AllowInternet },
		func(o *client.PatchOptions, yes *bool) { o.AllowInternet = yes }),
	"refreshOnActivity": {
		func(i client.Info) string {
			if i.Settings.RefreshOnRequests {
				return "requests"
			}
			return yesNo(i.Settings.RefreshOnActivity)
		},
		func(o *client.PatchOptions, text string) error {
			if o.RefreshOnRequests = text == "requests"; !o.RefreshOnRequests {
				o.RefreshOnActivity = new(text == "yes")
			}
			return nil
		},
	},
	"allowOut": {
		func(i client.Info) string { return strings.Join(i.AllowOut, "\n") },
		func(o *client.PatchOptions, text string) error { o.AllowOut = inLines(text); return nil },
	},
	"denyOut": {
		func(i client.Info) string { return strings.Join(i.DenyOut, "\n") },
		func(o *client.PatchOptions, text string) error { o.DenyOut = inLines(text); return nil },
	},
	"ports": {
		func(i client.Info) string { return pairLines(i.Ports) },
		func(o *client.PatchOptions, text string) error {
			all, err := pairs(text)
			o.Ports = map[string]client.WakePolicy{}
			for port, policy := range all {
				o.Ports[port] = client.WakePolicy(policy)
			}
			return err
		},
	},
	"metadata": {
		func(i client.Info) string { return pairLines(i.Metadata) },
		func(o *client.PatchOptions, text string) (err error) { o.Metadata, err = pairs(text); return err },
	},
}

// limitSetting is one that is a duration, or none.
func limitSetting(get func(client.Info) time.Duration, set func(*client.PatchOptions, *time.Duration)) setting {
	return setting{
		func(i client.Info) string {
			d := get(i)
			if d <= 0 {
				return "none"
			}
			text := d.String() // such as 1h0m0s
			for _, zero := range []string{"m0s", "h0m"} {
				if strings.HasSuffix(text, zero) {
					text = text[:len(text)-2]
				}
			}
			return text
		},
		func(o *client.PatchOptions, text string) error {
			if text == "none" {
				set(o, new(time.Duration(0)))
				return nil
			}
			d, err := durationOf(text)
			set(o, &d)
			return err
		},
	}
}

func yesOrNo(get func(client.Info) bool, set func(*client.PatchOptions, *bool)) setting {
	return setting{
		func(i client.Info) string { return yesNo(get(i)) },
		func(o *client.PatchOptions, text string) error { set(o, new(text == "yes")); return nil },
	}
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// inLines returns the lines of a text that are not empty; a list in any case, because
// nil would leave the setting as it is.
func inLines(text string) []string {
	all := []string{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// pairLines is the inverse of pairs.
func pairLines[T ~string](all map[string]T) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		lines = append(lines, key+"="+string(all[key]))
	}
	return strings.Join(lines, "\n")
}

// settingsPage is the form that changes a sandbox.
func settingsPage(v *visit) error { return v.settingsForm(http.StatusOK, nil, nil) }

// settingsForm shows what a form says that was refused, or else what the sandbox has.
func (v *visit) settingsForm(status int, said url.Values, refused *problem) error {
	_, h, err := v.open1("settings")
	if err != nil {
		return err
	}
	if !h.Alive() {
		return refusal{http.StatusNotFound, fmt.Sprintf("%s has ended: it has no settings", h.ID), "see its page for what ended it"}
	}
	d := settingsData{Head: h, Fields: slices.Sorted(maps.Keys(settings)), Said: said, Problem: refused}
	written, err := pairs(pairLines(h.Metadata))
	d.Odd = err != nil || !maps.Equal(written, h.Metadata) && len(h.Metadata) > 0
	if said == nil {
		d.Said = url.Values{}
		for name, s := range settings {
			d.Said.Set(name, s.show(h.Info))
			d.Said.Set(wasPrefix+name, s.show(h.Info))
		}
	}
	v.render(status, "settings", screen{Title: "Settings of " + h.ID, Section: "fleet", Data: d})
	return nil
}

// changeSettings changes of a sandbox what somebody has changed in the form.
func changeSettings(v *visit) error {
	id := v.r.PathValue("id")
	o, changed, err := v.patchOptions()
	told := "Nothing is changed: the form had what the sandbox had."
	if err == nil && len(changed) > 0 {
		var a api
		if a, err = v.api(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), actTime)
		defer cancel()
		_, err = a.Patch(ctx, id, o)
		told = "Changed: " + strings.Join(changed, ", ") + "."
	}
	if err == nil {
		return v.done(told, Path+"/sandboxes/"+url.PathEscape(id)+"/settings", "", nil)
	}
	p := v.problemOf(err)
	if p.Status == http.StatusUnauthorized {
		return err
	}
	return v.settingsForm(p.Status, v.r.PostForm, &p)
}

// patchOptions reads what differs in a form from what it was made with.
func (v *visit) patchOptions() (o client.PatchOptions, changed []string, err error) {
	f := v.r.PostForm
	text := func(name string) string {
		return strings.TrimSpace(strings.ReplaceAll(f.Get(name), "\r\n", "\n"))
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if !f.Has(name) || text(name) == text(wasPrefix+name) {
			continue
		}
		if err := settings[name].set(&o, text(name)); err != nil {
			return o, nil, err
		}
		changed = append(changed, name)
	}
	return o, changed, nil
}
