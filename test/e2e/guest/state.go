package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/test/e2e/filetree"
)

// tick is how often the counter moves.
const tick = 10 * time.Millisecond

// state is everything that must come through a pause unharmed.
type state struct {
	tree    string   // the directory of the file tree
	appends *os.File // one line for each count, open all the time
	deleted *os.File // has no name any more
	born    string   // random, so that a restart shows even if the pid is the same

	mu      sync.Mutex
	counter int64
	hits    map[string]int
	held    [][]byte
}

func newState(dir string) (*state, error) {
	tree, err := filepath.Abs(filepath.Join(dir, "tree"))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return nil, err
	}
	s := &state{tree: tree, born: rand.Text(), hits: map[string]int{}}
	if s.appends, err = os.OpenFile(filepath.Join(dir, "appended"), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
		return nil, err
	}
	if s.deleted, err = os.Create(filepath.Join(dir, "deleted")); err != nil {
		return nil, err
	}
	// Known content, that no buffer of 4 KiB repeats.
	var content bytes.Buffer
	for i := range 50_000 {
		fmt.Fprintf(&content, "%d\n", i*i)
	}
	if _, err := content.WriteTo(s.deleted); err != nil {
		return nil, err
	}
	return s, os.Remove(s.deleted.Name())
}

// count moves the counter and appends its value. What a full disk does not
// take is written later: the file's sequence has no gap.
func (s *state) count() {
	var pending []byte
	for range time.Tick(tick) {
		s.mu.Lock()
		s.counter++
		pending = fmt.Appendln(pending, s.counter)
		n, _ := s.appends.Write(pending)
		pending = pending[n:]
		s.mu.Unlock()
	}
}

// report is the answer to /state.
type report struct {
	PID        int
	Born       string
	Counter    int64
	Deleted    string // digest of the deleted file's content
	Generation string
	Now        time.Time
}

func (s *state) report() (report, error) {
	r := report{PID: os.Getpid(), Born: s.born, Now: time.Now()}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(s.deleted, 0, 1<<30)); err != nil {
		return r, err
	}
	r.Deleted = hex.EncodeToString(h.Sum(nil))
	var err error
	if r.Generation, err = generation(); err != nil {
		return r, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Counter = s.counter
	return r, nil
}

func (s *state) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/state", s.serveState)
	mux.HandleFunc("/random", serveRandom)
	mux.HandleFunc("/hit", s.serveHit)
	mux.HandleFunc("/hits", s.serveHits)
	mux.HandleFunc("/hold", s.serveHold)
	mux.HandleFunc("/stream", serveStream)
	mux.HandleFunc("/upgrade", serveUpgrade)
	mux.HandleFunc("/tree", s.serveTree)
	mux.HandleFunc("/long", serveLong)
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello from go") })
	newWire().handle(mux, s.hit)
	return mux
}

func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if err := json.NewEncoder(w).Encode(v); err != nil {
		log.Print(err)
	}
}

func (s *state) serveState(w http.ResponseWriter, _ *http.Request) {
	r, err := s.report()
	answer(w, r, err)
}

// serveRandom answers with random bytes from the kernel, by every way to them.
func serveRandom(w http.ResponseWriter, _ *http.Request) {
	device, call := make([]byte, 16), make([]byte, 16)
	f, err := os.Open("/dev/urandom")
	if err == nil {
		defer f.Close()
		_, err = io.ReadFull(f, device)
	}
	if err == nil {
		_, err = unix.Getrandom(call, 0)
	}
	answer(w, []string{hex.EncodeToString(device), hex.EncodeToString(call)}, err)
}

// hit counts a request by the id that it gives itself, and returns how many
// ids there are.
func (s *state) hit(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hits[id]++
	return len(s.hits)
}

// serveHit counts a request when it comes, and answers after a while if it is
// told so.
func (s *state) serveHit(w http.ResponseWriter, r *http.Request) {
	n := s.hit(r.URL.Query().Get("id"))
	if after := r.URL.Query().Get("after"); after != "" {
		d, err := time.ParseDuration(after)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		time.Sleep(d)
	}
	answer(w, n, nil)
}

func (s *state) serveHits(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer(w, s.hits, nil)
}

// serveHold takes memory and keeps it.
func (s *state) serveHold(w http.ResponseWriter, r *http.Request) {
	var mib int
	if _, err := fmt.Sscan(r.URL.Query().Get("mib"), &mib); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	held := touch(mib)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = held
	answer(w, len(held), nil)
}

// serveTree lists the file tree, after carrying out the steps of the body.
func (s *state) serveTree(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		var steps []filetree.Step
		if err := json.NewDecoder(r.Body).Decode(&steps); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := filetree.Apply(s.tree, steps); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
	}
	l, err := filetree.List(s.tree)
	answer(w, l, err)
}

// serveLong answers at length and does not look at the request's body.
func serveLong(w http.ResponseWriter, _ *http.Request) {
	w.Write(make([]byte, 64<<10))
}

// serveStream sends events until the client goes away.
func serveStream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for i := 1; ; i++ {
		if _, err := fmt.Fprintf(w, "data: %d\n\n", i); err != nil {
			return
		}
		if err := control.Flush(); err != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		}
	}
}

// serveUpgrade switches protocols and sends every line back.
func serveUpgrade(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "websocket" {
		http.Error(w, "no upgrade asked for", http.StatusUpgradeRequired)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		log.Print(err)
		return
	}
	defer conn.Close()
	fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
	if rw.Flush() != nil {
		return
	}
	lines := bufio.NewScanner(rw)
	for lines.Scan() {
		if _, err := fmt.Fprintf(conn, "echo %s\n", lines.Text()); err != nil {
			return
		}
	}
}
