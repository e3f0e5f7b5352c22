package house

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// elsewhere are packages that are not part of a server: they run in a guest, on a
// client's machine, in tests, or when the program is built.
var elsewhere = []string{
	"internal/agent", "internal/interpreter", "internal/cli", "internal/dockerfile", "internal/golden", "internal/planted", "internal/powercut", "internal/testmode",
	"internal/runtime/drivertest", "internal/runtime/fake", "internal/store/storetest", "internal/store/memstore", "internal/store/pgtest", "internal/api/apitest", "internal/blobs/blobstest",
	"internal/supervisor/agentclient/hostile", "internal/supervisor/contract", "internal/tree/treetest", "internal/ui/uitest", "internal/serve/certs/certstest",
	"internal/runtime/gvisor/overlay", "internal/agentbin/pack", "internal/api/v1/gen",
}

// takes are functions by whose call bytes of others come into memory, or a door opens
// by which they may come.
var takes = map[string]bool{
	"net.Listen": true, "net.ListenConfig": true, "tls.NewListener": true, "http.Server": true, "http2.Server": true, "http2.NewFramer": true,
	"websocket.Accept": true, "ssh.NewServerConn": true,
	"io.ReadAll": true, "io.Pipe": true, "json.NewDecoder": true, "http.MaxBytesReader": true, "multipart.NewReader": true,
}

// reads are methods by whose call the same happens, whatever they are of.
var reads = map[string]bool{
	"ParseMultipartForm": true, "ParseForm": true, "FormValue": true, "PostFormValue": true, "FormFile": true, "MultipartReader": true,
}

// place is a door, a queue, or a read into memory: the function that has it, and what.
type place struct{ at, what string }

// The bounds of what is counted.
const (
	inRoom = "counted by internal/held"
	byEdge = "counted by the edge's buffers, per address and in all"
	byGate = "counted by egress.Room, per key and in all"
)

// Bounds of what is not counted, because it cannot add up.
const (
	inMemory = "decodes what is in memory already, and counted there"
	short    = "64 KiB at most, for the time of one request"
	handOver = "a pipe without a buffer: the writer waits for the reader"
	ownFile  = "a file or process of the server's own, with a bound"
)

// bounds has every place, with what bounds it.
var bounds = map[place]string{
	{"client.Code.read", "long lines"}:                                    "lines of code's output, for the program that runs it; in drowse mcp --http the calls of a key are counted",
	{"client.follower.read", "long lines"}:                                "an event of drowse itself",
	{"client.codeRefused", "io.ReadAll"}:                                  short,
	{"client.decode", "json.NewDecoder"}:                                  "an answer of drowse itself, to a client that may be within it: 32 MiB",
	{"client.errorOf", "io.ReadAll"}:                                      short,
	{"client.follow", "json.NewDecoder"}:                                  "an answer of drowse itself, to a client that may be within it: 32 MiB",
	{"client.passRPCError", "io.ReadAll"}:                                 short,
	{"internal/api/body.digest", "json.NewDecoder"}:                       inMemory,
	{"internal/api/body.members", "json.NewDecoder"}:                      inMemory,
	{"internal/api/mitos.eachField", "json.NewDecoder"}:                   inMemory,
	{"internal/api/mitos.inside.cell", "long lines"}:                      inRoom,
	{"internal/api/mitos.inside.store", "io.Pipe"}:                        handOver,
	{"internal/api/mitos.readEnv", "json.NewDecoder"}:                     inMemory,
	{"internal/api/mitos.refusalOf", "io.ReadAll"}:                        short,
	{"internal/api/mitos.terminal", "websocket.Accept"}:                   inRoom,
	{"internal/api/mitos.upload.enter", "io.ReadAll"}:                     short,
	{"internal/api/sandbox0.codeContext.listen", "json.NewDecoder"}:       inRoom,
	{"internal/api/sandbox0.contexts.hear", "queue"}:                      inRoom,
	{"internal/api/sandbox0.contexts.meetKernels", "json.NewDecoder"}:     "1 MiB for a wake or an open, one call of the server's own at a time for each: maxInterpreterAnswer",
	{"internal/api/sandbox0.interpret", "io.ReadAll"}:                     short,
	{"internal/api/sandbox0.openREPL", "json.NewDecoder"}:                 "1 MiB for a wake or an open, one call of the server's own at a time for each: maxInterpreterAnswer",
	{"internal/api/sandbox0.output.follow", "queue"}:                      inRoom,
	{"internal/api/sandbox0.server.serveSocket", "websocket.Accept"}:      inRoom,
	{"internal/api/sandbox0.transfer", "json.NewDecoder"}:                 short,
	{"internal/build/workshop.Workshop.Put", "io.ReadAll"}:                short,
	{"internal/bundle.Reader.end", "io.ReadAll"}:                          short,
	{"internal/bundle.Reader.readManifest", "io.ReadAll"}:                 "maxManifest, for the time of one import",
	{"internal/bundle.Reader.readManifest", "json.NewDecoder"}:            inMemory,
	{"internal/cluster.request", "json.NewDecoder"}:                       short,
	{"internal/cluster.Cluster.take", "json.NewDecoder"}:                  short,
	{"internal/edge.NewServer", "http.Server"}:                            byEdge,
	{"internal/egress/inject.carried.serve", "http.Server"}:               byGate,
	{"internal/image.Merged.ReadFile", "io.ReadAll"}:                      "files of an image, each with a bound, while the one image that a pull has is unpacked",
	{"internal/image.archived.read", "io.ReadAll"}:                        "files of an image, each with a bound, while the one image that a pull has is unpacked",
	{"internal/image.packedLayer.read", "io.Pipe"}:                        handOver,
	{"internal/layer.decodeMap", "io.ReadAll"}:                            ownFile,
	{"internal/layer.list", "queue"}:                                      ownFile,
	{"internal/layer.readFlat", "io.ReadAll"}:                             ownFile,
	{"internal/mcp.Server.ServeListener", "http.Server"}:                  inRoom,
	{"internal/mcp.readFile", "io.ReadAll"}:                               "what a tool of MCP reads of a file: at most what it asks for, in a request that is counted",
	{"internal/replica.Reader.start", "queue"}:                            "ahead, of maxPiece bytes each",
	{"internal/replica.Write", "queue"}:                                   "uploads and one, of maxPiece bytes each",
	{"internal/replica.decode", "json.NewDecoder"}:                        inMemory,
	{"internal/runtime/gvisor.awaitImage", "json.NewDecoder"}:             ownFile,
	{"internal/runtime/gvisor.bePeer", "json.NewDecoder"}:                 ownFile,
	{"internal/runtime/gvisor.local.startTaker", "json.NewDecoder"}:       ownFile,
	{"internal/runtime/gvisor.logged", "io.ReadAll"}:                      ownFile,
	{"internal/runtime/gvisor.takeImage", "io.ReadAll"}:                   ownFile,
	{"internal/runtime/gvisor.takeImage", "json.NewDecoder"}:              ownFile,
	{"internal/runtime/gvisor/imageserver.newPagesWriter", "queue"}:       ownFile,
	{"internal/runtime/gvisor/imageserver.newReader", "queue"}:            ownFile,
	{"internal/runtime/netns.Outlet.listenLocked", "net.ListenConfig"}:    byGate,
	{"internal/serve.listen", "net.ListenConfig"}:                         byEdge,
	{"internal/serve.lockDir", "io.ReadAll"}:                              ownFile,
	{"internal/serve.readElsewhere", "io.ReadAll"}:                        ownFile,
	{"internal/sshd.Server.handshake", "ssh.NewServerConn"}:               inRoom,
	{"internal/sshd.forward", "io.Pipe"}:                                  handOver,
	{"internal/supervisor/agentclient.Agent.call", "http.MaxBytesReader"}: "an answer of the guest's agent: maxAnswer, and the room of client/agentpb/bounded.go",
	{"internal/supervisor/agentclient.Agent.call", "json.NewDecoder"}:     "an answer of the guest's agent: maxAnswer, and the room of client/agentpb/bounded.go",
	{"internal/template.withoutCredentials", "io.ReadAll"}:                "a file of the host's, with a bound",
	{"internal/ui.api.call", "json.NewDecoder"}:                           "an answer of drowse itself, to the dashboard",
	{"internal/ui.api.text", "io.ReadAll"}:                                "an answer of drowse itself, for the time of one page: maxText",
	{"internal/ui.readText", "io.ReadAll"}:                                "1 MiB, for the time of one page: maxEdit",
	{"internal/ui.refused", "io.ReadAll"}:                                 short,
	{"internal/ui.terminal", "websocket.Accept"}:                          inRoom,
	{"internal/ui.visit.back", "FormValue"}:                               inRoom,
	{"internal/ui.visit.parseForm", "ParseForm"}:                          inRoom,
	{"internal/ui.visit.shell", "io.Pipe"}:                                handOver,
}

// found calls f with each place of a file where bytes of others come in.
func (p *places) find(pkg string, file *ast.File) {
	for _, decl := range file.Decls {
		name := "var"
		if d, ok := decl.(*ast.FuncDecl); ok {
			name = d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
		}
		at := pkg + "." + name
		buffers := map[string]bool{}
		ast.Inspect(decl, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.ValueSpec:
				if t := dotted(x.Type); takes[t] {
					p.add(at, t)
				}
				if growing(x.Type) {
					for _, id := range x.Names {
						buffers[id.Name] = true
					}
				}
			case *ast.AssignStmt:
				for i, v := range x.Rhs {
					if id, ok := x.Lhs[min(i, len(x.Lhs)-1)].(*ast.Ident); ok && makesGrowing(v) {
						buffers[id.Name] = true
					}
				}
			case *ast.CompositeLit:
				if t := dotted(x.Type); takes[t] {
					p.add(at, t)
				}
			case *ast.CallExpr:
				p.call(at, x, buffers)
			}
			return true
		})
	}
}

// call looks at one call. Buffers are the names of variables that grow.
func (p *places) call(at string, x *ast.CallExpr, buffers map[string]bool) {
	name := dotted(x.Fun)
	switch method := name[strings.LastIndexByte(name, '.')+1:]; {
	case takes[name]:
		p.add(at, name)
	case reads[method] && name != method:
		p.add(at, method)
	case (name == "io.Copy" || name == "io.CopyN") && len(x.Args) > 1 && isBuffer(x.Args[0], buffers):
		p.add(at, "io.Copy into a buffer")
	case method == "Buffer" && name != method && len(x.Args) == 2: // of a bufio.Scanner
		p.add(at, "long lines")
	case method == "ReadFrom" && buffers[strings.TrimSuffix(name, ".ReadFrom")]:
		p.add(at, "io.Copy into a buffer")
	case name == "make" && len(x.Args) == 2:
		ch, ok := x.Args[0].(*ast.ChanType)
		if n, literal := x.Args[1].(*ast.BasicLit); ok && !signal(ch.Value) && !(literal && n.Value == "1") {
			p.add(at, "queue")
		}
	case name == "new" && len(x.Args) == 1 && takes[dotted(x.Args[0])]:
		p.add(at, dotted(x.Args[0]))
	}
}

// signal reports whether values of a type have no bytes of anybody's.
func signal(typ ast.Expr) bool {
	if s, ok := typ.(*ast.StructType); ok {
		return len(s.Fields.List) == 0
	}
	switch dotted(typ) {
	case "error", "bool", "int", "os.Signal":
		return true
	}
	return false
}

func growing(typ ast.Expr) bool {
	t := dotted(typ)
	return t == "bytes.Buffer" || t == "strings.Builder"
}

// makesGrowing reports whether an expression is a new buffer, or its address.
func makesGrowing(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.UnaryExpr:
		return makesGrowing(x.X)
	case *ast.CompositeLit:
		return growing(x.Type)
	case *ast.CallExpr:
		return dotted(x.Fun) == "bytes.NewBuffer" || dotted(x.Fun) == "new" && len(x.Args) == 1 && growing(x.Args[0])
	}
	return false
}

func isBuffer(x ast.Expr, buffers map[string]bool) bool {
	if u, ok := x.(*ast.UnaryExpr); ok {
		x = u.X
	}
	return buffers[dotted(x)]
}

// dotted returns a name with what it is of, as it is written.
func dotted(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return dotted(x.X) + "." + x.Sel.Name
	case *ast.StarExpr:
		return dotted(x.X)
	case *ast.ParenExpr:
		return dotted(x.X)
	}
	return ""
}

// places are where bytes of others come into a server's memory.
type places struct{ at map[place]bool }

func (p *places) add(at, what string) { p.at[place{at, what}] = true }

// placesBelow parses the server's code.
func placesBelow(t *testing.T, root string) *places {
	t.Helper()
	p := &places{map[place]bool{}}
	for _, top := range []string{"client", "cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			pkg, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			if d.IsDir() {
				for _, e := range elsewhere {
					if pkg == e {
						return filepath.SkipDir
					}
				}
				if d.Name() == "testdata" {
					return filepath.SkipDir
				}
				return nil
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			source, err := os.ReadFile(path)
			if err != nil || bytes.HasPrefix(source, []byte("// Code generated ")) {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
			if err == nil {
				p.find(filepath.Dir(pkg), file)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func TestEveryQueueHasABound(t *testing.T) {
	found := placesBelow(t, filepath.Join("..", "..")).at
	for x := range found {
		if bounds[x] == "" {
			t.Errorf("%s has %s, and test/house/waiting_test.go does not say what bounds what others have it hold: take it from a held.Room, or say there why it cannot add up", x.at, x.what)
		}
	}
	for x := range bounds {
		if !found[x] {
			t.Errorf("%s has no %s any more: take it out of the table", x.at, x.what)
		}
	}
}

// TestPlacesAreFound has one of each kind of place that must be found, and some that
// must not.
func TestPlacesAreFound(t *testing.T) {
	const source = `package p
	import ("io"; "net"; "net/http"; "bytes"; "strings")
	var lc net.ListenConfig
	func listen() { net.Listen("tcp", "") }
	func serve() { s := &http.Server{}; s.Serve(nil) }
	func again() { s := new(http.Server); s.Serve(nil) }
	func (s *server) all(r io.Reader) { io.ReadAll(r) }
	func grow(r io.Reader) { var b bytes.Buffer; io.Copy(&b, r) }
	func build(r io.Reader) { b := &strings.Builder{}; io.Copy(b, r) }
	func from(r io.Reader) { b := new(bytes.Buffer); b.ReadFrom(r) }
	func queue(n int) { _ = make(chan []byte, n) }
	func queue2() { _ = make(chan message, 16) }
	func form(r *http.Request) { r.ParseMultipartForm(1) }
	func lines(s *bufio.Scanner) { s.Buffer(nil, 1) }
	func none(w io.Writer, r io.Reader) {
		io.Copy(w, r); io.Copy(io.Discard, r)
		_ = make(chan struct{}, 9); _ = make(chan []byte); _ = make(chan []byte, 1); _ = make(chan error, 2); _ = make([]byte, 9)
	}`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &places{map[place]bool{}}
	p.find("p", file)
	want := map[place]bool{
		{"p.var", "net.ListenConfig"}: true, {"p.listen", "net.Listen"}: true, {"p.serve", "http.Server"}: true, {"p.again", "http.Server"}: true,
		{"p.server.all", "io.ReadAll"}: true, {"p.grow", "io.Copy into a buffer"}: true, {"p.build", "io.Copy into a buffer"}: true,
		{"p.from", "io.Copy into a buffer"}: true, {"p.queue", "queue"}: true, {"p.queue2", "queue"}: true,
		{"p.form", "ParseMultipartForm"}: true, {"p.lines", "long lines"}: true,
	}
	for x := range want {
		if !p.at[x] {
			t.Errorf("%v is not found", x)
		}
	}
	for x := range p.at {
		if !want[x] {
			t.Errorf("%v is found", x)
		}
	}
}
