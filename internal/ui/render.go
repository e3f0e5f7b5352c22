package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/human"
)

//go:embed pages
var pageFiles embed.FS

//go:embed static
var staticFiles embed.FS

// dist is what make build copies from npm packages: the terminal. It also holds a
// file that is always there, so that the package compiles without them.
//
//go:embed all:dist
var dist embed.FS

// screen is what a page is made of.
type screen struct {
	Title   string
	Section string   // of the navigation
	Scripts []string // besides those of every page
	Sheets  []string
	Data    any

	// Set by render.
	Holder  *Holder
	Token   string
	Nonce   string
	Notices []notice
	Now     time.Time
}

// May reports whether whoever looks has a permission of the API, so that a page
// offers no more than that. What is refused is up to the API.
func (s screen) May(permission string) bool {
	if s.Holder == nil {
		return false
	}
	switch permission {
	case "use":
		return s.Holder.Role != client.RoleRead
	case "share":
		return s.Holder.Role == client.RoleFull || s.Holder.Role == client.RoleAdmin
	case "manage":
		return s.Holder.Role == client.RoleAdmin
	}
	return false
}

var pages = sync.OnceValue(func() map[string]*template.Template {
	base := template.Must(template.New("").Funcs(functions).ParseFS(pageFiles, "pages/layout.html", "pages/parts.html"))
	all := map[string]*template.Template{}
	names, err := fs.Glob(pageFiles, "pages/*.html")
	if err != nil {
		panic(err)
	}
	for _, name := range names {
		t := template.Must(base.Clone())
		all[strings.TrimSuffix(path.Base(name), ".html")] = template.Must(t.ParseFS(pageFiles, name))
	}
	return all
})

// render sends a page.
func (v *visit) render(status int, name string, s screen) {
	s.Nonce, s.Now = v.nonce, time.Now()
	if v.session != nil {
		s.Holder, s.Token = &v.session.holder, v.session.token
		if !v.silent {
			s.Notices = v.session.told()
		}
	}
	var b bytes.Buffer
	if err := pages()[name].ExecuteTemplate(&b, "layout", s); err != nil {
		v.s.Log.Error("page of the dashboard failed", "page", name, "err", err)
		http.Error(v.w, "the page could not be made; the server's log has the reason", http.StatusInternalServerError)
		return
	}
	holder := ""
	if v.session != nil {
		holder = v.session.holder.ID
	}
	room, err := v.s.Room.Answer(held.From(v.r, holder), b.Len())
	if err != nil {
		http.Error(v.w, err.Error(), http.StatusTooManyRequests)
		return
	}
	defer room.Free()
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_ = held.WriteAnswer(v.w, b.Bytes())
}

// asset is a file that pages load. Those of dist are compressed.
type asset struct {
	data       []byte
	kind       string
	compressed bool
	version    string
}

var assets = sync.OnceValue(func() map[string]asset {
	all := map[string]asset{}
	for _, dir := range []struct {
		files fs.FS
		name  string
	}{{staticFiles, "static"}, {dist, "dist"}} {
		entries, err := fs.ReadDir(dir.files, dir.name)
		if err != nil {
			panic(err)
		}
		for _, e := range entries {
			data, err := fs.ReadFile(dir.files, path.Join(dir.name, e.Name()))
			if err != nil {
				panic(err)
			}
			name, compressed := strings.CutSuffix(e.Name(), ".gz")
			kind := map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}[path.Ext(name)]
			if kind == "" {
				continue
			}
			sum := sha256.Sum256(data)
			all[name] = asset{data, kind, compressed, hex.EncodeToString(sum[:6])}
		}
	}
	return all
})

// static sends a file that pages load.
func static(v *visit) error {
	a, ok := assets()[v.r.PathValue("name")]
	if !ok {
		v.w.Header().Set("Cache-Control", "no-store")
		http.NotFound(v.w, v.r)
		return nil
	}
	h := v.w.Header()
	h.Set("Content-Type", a.kind)
	if !a.compressed {
		_, _ = v.w.Write(a.data)
		return nil
	}
	h.Set("Vary", "Accept-Encoding")
	if strings.Contains(v.r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		_, _ = v.w.Write(a.data)
		return nil
	}
	r, err := gzip.NewReader(bytes.NewReader(a.data))
	if err != nil {
		return fmt.Errorf("unpack %s: %w", v.r.PathValue("name"), err)
	}
	_, _ = io.Copy(v.w, r)
	return nil
}

// functions are what pages call.
var functions = template.FuncMap{
	"asset": func(name string) string { return Path + "/static/" + name + "?v=" + assets()[name].version },
	"bytes": human.Bytes,
	"mib":   func(n int) string { return human.Bytes(int64(n) << 20) },
	"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"clock": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
	"ago":   func(t, now time.Time) string { return span(now.Sub(t)) + " ago" },
	"until": func(t, now time.Time) string {
		if !t.After(now) {
			return "now"
		}
		return "in " + span(t.Sub(now))
	},
	"took":   func(from, to time.Time) string { return span(to.Sub(from)) },
	"span":   span,
	"short":  func(text string, most int) string { return human.Line(text, most) },
	"join":   strings.Join,
	"lower":  strings.ToLower,
	"status": statusOf,
	"actor":  actorOf,
	"secs":   func(s float64) string { return span(time.Duration(s * float64(time.Second))) },
	"list":   func(all ...any) []any { return all },
	"sub":    func(a, b int64) int64 { return a - b },
	"inside": insidePath,
	"either": func(first bool, a, b string) string {
		if first {
			return a
		}
		return b
	},
	"ratio": ratio,
	"own":   func(next string) string { return ownPath(next, Path+"/") },
}

// span is a duration in its two largest units.
func span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm %02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh %02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd %02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// statusOf is a sandbox's state, or the operation in flight.
func statusOf(s client.State, p client.Phase) string {
	if p != "" {
		return string(p)
	}
	return string(s)
}

// actorOf says who did something.
func actorOf(actor string) string {
	if id, ok := strings.CutPrefix(actor, "key:"); ok {
		return "key " + id[:min(8, len(id))]
	}
	if actor == "" {
		return "the server"
	}
	return actor
}

// ratio is a part of a whole in percent, as a whole number.
func ratio(part, whole int64) int64 {
	if whole <= 0 {
		return 0
	}
	return min(100, max(0, part*100/whole))
}
