// Package uitest is a server of dashboards in front of sandboxes that are none: as
// many as a test wants, in no time.
package uitest

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/api/e2b"
	v1 "github.com/drowse-dev/drowse/internal/api/v1"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
	"github.com/drowse-dev/drowse/internal/ui"
)

// Server is a dashboard with what is behind it.
type Server struct {
	URL  string
	Fake *apitest.Fake
	Keys *auth.Keys
	HTTP http.Handler
}

// keys are the keys as the dashboard knows them.
type keys struct{ *auth.Keys }

// Check returns whose key a text is.
func (k keys) Check(text string) (ui.Holder, error) {
	key, err := k.Keys.Check(text)
	return ui.Holder{ID: key.ID, Name: key.Name, Mask: key.Prefix, Role: client.Role(key.Role)}, err
}

// New returns a server for a listener, which the caller serves with HTTP. Its
// sessions last as long as ctx.
func New(ctx context.Context, ln net.Listener) (*Server, error) {
	st := memstore.Open(memstore.NewData(), memstore.Hooks{})
	known, err := auth.Load(ctx, st)
	if err != nil {
		return nil, err
	}
	sshKeys, err := auth.LoadSSHKeys(ctx, st, known)
	if err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + ln.Addr().String(), Fake: apitest.NewFake(), Keys: known}
	s.Fake.Now = time.Now().UTC().Truncate(time.Microsecond)
	templates, snapshots := apitest.NewTemplates(s.Fake), apitest.NewSnapshots(s.Fake)
	native := v1.New(v1.Options{Servers: apitest.Servers{}, Sandboxes: s.Fake, Volumes: s.Fake, Templates: templates, Snapshots: snapshots, Builds: apitest.NewBuilds(), Services: apitest.NewServices(s.Fake), Publisher: apitest.Publisher{}, Traces: apitest.NewTraces(s.Fake), Diaries: s.Fake, Auth: known, Keys: known, SSHKeys: sshKeys, Isolation: "gvisor"})
	other := e2b.New(e2b.Options{Sandboxes: s.Fake, Volumes: s.Fake, Templates: templates, Snapshots: snapshots, Auth: known, Keys: known})
	dashboard := ui.New(ctx, ui.Options{Keys: keys{known}, Connect: func(net.Addr) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", ln.Addr().String())
	}})
	s.HTTP = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case v1.Owns(r):
			native.ServeHTTP(w, r)
		case ui.Owns(r):
			dashboard.ServeHTTP(w, r)
		default:
			other.ServeHTTP(w, r)
		}
	})
	return s, nil
}

// Key makes an API key and returns its text.
func (s *Server) Key(ctx context.Context, role store.Role) (store.Key, string, error) {
	return s.Keys.Create(ctx, auth.Request{Name: fmt.Sprintf("%s of the test, %d", role, len(s.Keys.List())), Role: role})
}

// Fill makes n sandboxes, of which every third sleeps.
func (s *Server) Fill(ctx context.Context, n int) error {
	for i := range n {
		sb, err := s.Fake.Create(ctx, supervisor.CreateRequest{Template: "base", Config: store.Config{Metadata: map[string]string{"name": fmt.Sprintf("number %d", i), "part": fmt.Sprint(i % 7)}}})
		if err != nil {
			return err
		}
		if i%3 == 0 {
			if err := s.Fake.Pause(ctx, sb.ID, supervisor.PauseRequest{Actor: "test"}); err != nil {
				return err
			}
		}
	}
	return nil
}

// told are sandboxes with a past: how many minutes ago each was created, and then was
// paused and resumed in turn.
var told = []struct {
	name    string
	minutes []float64
	mem     int64 // MiB, of those that run
}{
	{"nightly-report", []float64{610, 590}, 0},
	{"support-bot", []float64{500, 480, 52, 47, 33, 30, 12}, 212},
	{"data-analyst", []float64{300, 58, 41, 38, 36}, 640},
	{"code-review", []float64{200, 190, 55, 49, 44, 40, 35, 29, 26, 21, 17, 11, 8}, 318},
	{"web-research", []float64{180, 20}, 0},
	{"build-agent", []float64{95}, 1480},
	{"customer-4711", []float64{47, 42, 18, 15}, 0},
	{"experiment", []float64{14, 9}, 0},
	{"new-arrival", []float64{3}, 95},
}

// light is the one of told that sleeps lightly.
const light = "experiment"

// Tell makes a few sandboxes that have lived for a while. It is for a server that
// serves nobody yet.
func (s *Server) Tell(ctx context.Context) error {
	now := s.Fake.Now
	s.Fake.Measured = map[string][]usage.Sample{}
	defer func() { s.Fake.Now = now }()
	for _, one := range told {
		at := func(minutes float64) { s.Fake.Now = now.Add(-time.Duration(minutes * float64(time.Minute))) }
		at(one.minutes[0])
		sb, err := s.Fake.Create(ctx, supervisor.CreateRequest{
			Template: "base", Settings: lifecycle.Settings{OnTimeout: lifecycle.Pause, AutoResume: true},
			Config: store.Config{Name: one.name, Limits: store.Limits{CPUs: 2, MemoryMiB: 2048, DiskMiB: 10240, PIDs: 2048}},
		})
		if err != nil {
			return err
		}
		s.Fake.Light[sb.ID] = one.name == light
		for n, minutes := range one.minutes[1:] {
			at(minutes)
			if n%2 == 0 {
				err = s.Fake.Pause(ctx, sb.ID, supervisor.PauseRequest{Actor: "test"})
			} else {
				_, err = s.Fake.Resume(ctx, sb.ID, supervisor.WakeRequest{Actor: "test"})
			}
			if err != nil {
				return err
			}
		}
		if one.mem > 0 {
			s.Fake.Measured[sb.ID] = measured(now, one.minutes, float64(one.mem<<20))
		}
	}
	return nil
}

// measured is what a sandbox used every half a minute while it was awake: memory last.
func measured(now time.Time, minutes []float64, memory float64) (all []usage.Sample) {
	for ago := minutes[0]; ago >= 0; ago -= 0.5 {
		changes := 0
		for _, m := range minutes {
			if m >= ago {
				changes++
			}
		}
		if changes%2 == 0 {
			continue // it slept
		}
		all = append(all, usage.Sample{
			At: now.Add(-time.Duration(ago * float64(time.Minute))), CPUPercent: 4 + 70*math.Pow(math.Sin(ago/2), 6),
			Memory: int64(memory * (0.8 + 0.2*math.Cos(ago/7))), DiskUsed: int64(memory / 4 * (1 - ago/(2*minutes[0]))), DiskTotal: 10 << 30,
		})
	}
	return all
}
