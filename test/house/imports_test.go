package house

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/drowse-dev/drowse/"

// layer is a group of packages with the same rule for their imports. A package
// may import its own layer, and the layers that may lists.
type layer struct {
	name     string
	packages []string // with all below them that no other layer lists
	may      []string
	why      string
}

// layers has every package, the layers that depend on others first. The diagram
// of docs/architecture.md is drawn from it.
var layers = []layer{
	{
		name:     "programs",
		packages: []string{"cmd", "packaging"},
		may:      []string{"command line", "clients", "server", "front", "supervisor", "parts of the supervisor", "records", "host", "guest", "core", "base"},
		why:      "a program puts together what is tested elsewhere",
	},
	{
		name:     "command line",
		packages: []string{"internal/cli"},
		may:      []string{"clients", "core", "base"},
		why:      "the command line does what every other client can do, and builds where no server runs",
	},
	{
		name:     "clients",
		packages: []string{"client", "internal/dockerfile", "internal/mcp", "internal/sshd", "internal/ui"},
		may:      []string{"core", "base"},
		why:      "a client knows what the API says and nothing else, and builds where no server runs",
	},
	{
		name:     "server",
		packages: []string{"internal/serve"},
		may:      []string{"clients", "front", "supervisor", "parts of the supervisor", "records", "host", "core", "base"},
		why:      "the server is put together here, and nothing below knows how",
	},
	{
		name:     "front",
		packages: []string{"internal/api", "internal/cluster", "internal/edge", "internal/auth", "internal/webhook", "internal/build", "internal/otlp"},
		may:      []string{"supervisor", "parts of the supervisor", "records", "host", "guest", "core", "base"},
		why:      "requests reach a sandbox through the supervisor, which orders and commits what happens to it",
	},
	{
		name:     "supervisor",
		packages: []string{"internal/supervisor"},
		may:      []string{"parts of the supervisor", "records", "host", "core", "base"},
		why:      "the supervisor does not know who asks, so that every dialect gets the same answer",
	},
	{
		name: "parts of the supervisor",
		packages: []string{
			"internal/supervisor/agentclient", "internal/supervisor/autopsy", "internal/supervisor/awake", "internal/supervisor/calls", "internal/supervisor/capacity", "internal/supervisor/capture", "internal/supervisor/checkpoint", "internal/supervisor/commits",
			"internal/supervisor/cost", "internal/supervisor/defaults", "internal/supervisor/disklimit", "internal/supervisor/events",
			"internal/supervisor/fetch", "internal/supervisor/fields", "internal/supervisor/fitness", "internal/supervisor/greed", "internal/supervisor/ids", "internal/supervisor/insist",
			"internal/supervisor/journal", "internal/supervisor/launch", "internal/supervisor/leases", "internal/supervisor/lightsleep", "internal/supervisor/merging",
			"internal/supervisor/metrics", "internal/supervisor/moving", "internal/supervisor/names", "internal/supervisor/once", "internal/supervisor/outcome", "internal/supervisor/outside",
			"internal/supervisor/preview", "internal/supervisor/publish", "internal/supervisor/putoff", "internal/supervisor/quota", "internal/supervisor/remains", "internal/supervisor/replication", "internal/supervisor/services", "internal/supervisor/snapshots",
			"internal/supervisor/space", "internal/supervisor/starved", "internal/supervisor/takeover", "internal/supervisor/tasks", "internal/supervisor/templates", "internal/supervisor/tenure", "internal/supervisor/timers",
			"internal/supervisor/tokens", "internal/supervisor/usage", "internal/supervisor/volumes",
			"internal/sweep",
		},
		may: []string{"records", "host", "core", "base"},
		why: "the supervisor is made of these packages, and each can be tested without it",
	},
	{
		name:     "records",
		packages: []string{"internal/store", "internal/bundle", "internal/replica", "internal/secret", "internal/audit"},
		may:      []string{"host", "core", "base"},
		why:      "what is stored and exported must not depend on how it is used",
	},
	{
		name: "host",
		packages: []string{
			"internal/runtime", "internal/layer", "internal/image", "internal/template", "internal/volume",
			"internal/blobs", "internal/blockdev", "internal/cgroup", "internal/egress", "internal/agentbin", "internal/backup",
		},
		may: []string{"base"},
		why: "these packages work on the machine and know nothing of records, so that they can be tested without a server",
	},
	{
		name:     "guest",
		packages: []string{"internal/agent", "internal/interpreter"},
		may:      []string{"base"},
		why:      "the agent runs inside a sandbox: it must stay small, and nothing of the server is there",
	},
	{
		name:     "core",
		packages: []string{"internal/lifecycle"},
		may:      []string{"base"},
		why:      "the core decides and does no I/O",
	},
	{
		name: "base",
		packages: []string{
			"internal/errdef", "internal/human", "internal/service", "internal/durable", "internal/tree", "internal/ration", "internal/held", "internal/sandboxid", "internal/trace", "internal/version",
			"internal/failpoint", "internal/lazyregexp", "internal/ownthread", "internal/pagemap", "internal/planted", "internal/replica/seal", "internal/serve/settings", "internal/edge/h1", "internal/agent/agentapi", "client/agentpb",
		},
		why: "everything imports these packages, so they can import nothing",
	},
	{
		name: "tests",
		packages: []string{
			"internal/api/apitest", "internal/blobs/blobstest", "internal/cli/fakeserver", "internal/golden", "internal/powercut", "internal/runtime/drivertest",
			"internal/runtime/fake", "internal/serve/certs/certstest", "internal/store/memstore", "internal/store/pgtest", "internal/store/storetest",
			"internal/supervisor/agentclient/hostile", "internal/supervisor/contract", "internal/testmode", "internal/tree/treetest",
			"internal/ui/uitest",
		},
		may: []string{"clients", "front", "supervisor", "parts of the supervisor", "records", "host", "guest", "core", "base"},
		why: "tests share this package; product code must not contain it",
	},
}

// arrows are single imports that must not be, beside those between layers: where
// a path below from imports a path below to.
var arrows = []struct {
	from, to string
	but      []string // paths below from that may
	why      string
}{
	{
		from: "", to: module + "internal/runtime/gvisor", but: []string{"internal/runtime/gvisor", "internal/runtime/drivers"},
		why: "all go through package drivers, so that there can be another runtime",
	},
	{
		from: "", to: "gvisor.dev/gvisor", but: []string{"internal/runtime/gvisor"},
		why: "gVisor promises no stable interfaces, so an upgrade must concern one package",
	},
	{
		from: "", to: "modernc.org/sqlite", but: []string{"internal/store"},
		why: "one package knows how records are stored",
	},
	{
		from: "client", to: module + "internal", but: nil,
		why: "the client is a module of its own, so that programs which use it get nothing of the server's",
	},
	{
		from: "internal/api", to: module + "internal/runtime", but: nil,
		why: "an API asks the supervisor; it does not touch sandboxes",
	},
	{
		from: "internal/edge", to: module + "internal/runtime", but: nil,
		why: "the edge asks the supervisor for a connection; it does not touch sandboxes",
	},
	{
		from: "internal/edge", to: module + "internal/api", but: nil,
		why: "the data plane knows no dialect",
	},
}

// dialects are packages below internal/api of which none may import another.
var dialects = []string{"e2b", "mitos", "sandbox0", "v1"}

const whyApart = "a dialect can be changed without another; what all need is in dialect, httpapi and body"

// below says whether a path is dir or below it.
func below(path, dir string) bool {
	return dir == "" || path == dir || strings.HasPrefix(path, dir+"/")
}

// layerOf returns the layer of a package: the one that lists the longest path.
func layerOf(pkg string) *layer {
	var found *layer
	longest := -1
	for i := range layers {
		for _, p := range layers[i].packages {
			if below(pkg, p) && len(p) > longest {
				found, longest = &layers[i], len(p)
			}
		}
	}
	return found
}

// forbidden returns why a package must not import another; "" if it may.
func forbidden(pkg, imported string) string {
	for _, a := range arrows {
		if below(pkg, a.from) && below(imported, a.to) && !slices.ContainsFunc(a.but, func(b string) bool { return below(pkg, b) }) {
			return a.why
		}
	}
	for _, from := range dialects {
		for _, to := range dialects {
			if from != to && below(pkg, "internal/api/"+from) && below(imported, module+"internal/api/"+to) {
				return whyApart
			}
		}
	}
	own, ok := strings.CutPrefix(imported, module)
	if !ok {
		return ""
	}
	from, to := layerOf(pkg), layerOf(own)
	for p, l := range map[string]*layer{pkg: from, own: to} {
		if l != nil && l.name == "supervisor" && p != "internal/supervisor" {
			return fmt.Sprintf("%s is below the supervisor and in no list: add it to %q in test/house/imports_test.go", p, "parts of the supervisor")
		}
	}
	switch {
	case from == nil:
		return fmt.Sprintf("%s is in no layer: add it to one in test/house/imports_test.go", pkg)
	case to == nil:
		return fmt.Sprintf("%s is in no layer: add it to one in test/house/imports_test.go", own)
	case from == to || slices.Contains(from.may, to.name):
		return ""
	case to.name == "tests":
		return to.why
	}
	return fmt.Sprintf("%q must not import %q: %s", from.name, to.name, from.why)
}

// imports calls f with every import of code that is not a test.
func imports(t *testing.T, f func(file, pkg, imported string)) {
	t.Helper()
	root := filepath.Join("..", "..")
	for _, top := range []string{"client", "cmd", "internal", "packaging"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return filepath.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			pkg, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			for _, i := range file.Imports {
				imported, err := strconv.Unquote(i.Path.Value)
				if err != nil {
					return err
				}
				f(path, pkg, imported)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestImports(t *testing.T) {
	looked := 0
	imports(t, func(file, pkg, imported string) {
		looked++
		if why := forbidden(pkg, imported); why != "" {
			t.Errorf("%s imports %s: %s", file, imported, why)
		}
	})
	if looked < 1000 {
		t.Errorf("only %d imports were looked at", looked)
	}
}

// TestImportRules has one import that each rule must refuse, or let pass.
func TestImportRules(t *testing.T) {
	for _, c := range []struct{ pkg, imported, want string }{
		{"internal/supervisor/quota", module + "internal/supervisor", "each can be tested without it"},
		{"internal/supervisor", module + "internal/supervisor/quota", ""},
		{"internal/serve", module + "internal/runtime/gvisor", "another runtime"},
		{"internal/serve", "gvisor.dev/gvisor/pkg/log", "one package"},
		{"internal/runtime/gvisor", "gvisor.dev/gvisor/pkg/log", ""},
		{"internal/lifecycle", module + "internal/store", "no I/O"},
		{"internal/cli", module + "internal/store", "what every other client can do"},
		{"client", module + "internal/errdef", "a module of its own"},
		{"client/agentpb/process", module + "internal/errdef", "a module of its own"},
		{"client", module + "client/agentpb", ""},
		{"internal/api/e2b", module + "internal/runtime", "asks the supervisor"},
		{"internal/api/v1", module + "internal/serve", "through the supervisor"},
		{"internal/errdef", module + "internal/lifecycle", "import nothing"},
		{"internal/layer", module + "internal/lifecycle", "nothing of records"},
		{"internal/agent", module + "internal/layer", "must stay small"},
		{"internal/supervisor", module + "internal/runtime/fake", "product code"},
		{"internal/store", module + "internal/store/memstore", "product code"},
		{"internal/supervisor", module + "internal/api/v1", "who asks"},
		{"internal/invented", module + "internal/errdef", "in no layer"},
		{"internal/serve", module + "internal/invented", "in no layer"},
		{"internal/supervisor/invented", module + "internal/errdef", "parts of the supervisor"},
		{"internal/supervisor", module + "internal/supervisor/invented", "parts of the supervisor"},
	} {
		got := forbidden(c.pkg, c.imported)
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s imports %s: %q, want %q in it", c.pkg, c.imported, got, c.want)
		}
	}
	for _, l := range layers {
		for _, m := range l.may {
			if !slices.ContainsFunc(layers, func(o layer) bool { return o.name == m }) {
				t.Errorf("layer %q may import %q, which is none", l.name, m)
			}
		}
	}
}
