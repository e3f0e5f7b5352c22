package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// wire is what the guest does to put the way to it to the test: it answers in
// every form that HTTP has, and notes what it saw of its clients.
type wire struct {
	mu       sync.Mutex
	ends     map[string]string // how clients that gave a name went away
	feeds    map[chan string]bool
	together chan struct{} // closed when as many requests are there as are waited for
	waiting  int
}

func newWire() *wire {
	return &wire{ends: map[string]string{}, feeds: map[chan string]bool{}, together: make(chan struct{})}
}

func (w *wire) handle(mux *http.ServeMux, hit func(id string) int) {
	mux.HandleFunc("/ws", func(rw http.ResponseWriter, r *http.Request) {
		hit(r.URL.Query().Get("id"))
		w.serveWebSocket(rw, r)
	})
	mux.HandleFunc("/feed", w.serveFeed)
	mux.HandleFunc("/say", w.serveSay)
	mux.HandleFunc("/blob", serveBlob)
	mux.HandleFunc("/sink", w.serveSink)
	mux.HandleFunc("/refuse", serveRefuse)
	mux.HandleFunc("/duplex", serveDuplex)
	mux.HandleFunc("/trailers", serveTrailers)
	mux.HandleFunc("/open", serveOpenEnd)
	mux.HandleFunc("/linger", w.serveLinger)
	mux.HandleFunc("/ends", w.serveEnds)
	mux.HandleFunc("/together", w.serveTogether)
	mux.HandleFunc("/headers", serveHeaders)
	mux.HandleFunc("/page/", servePage)
}

// ended notes how the request that calls itself name has ended.
func (w *wire) ended(name, how string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends[name] = how
}

func (w *wire) serveEnds(rw http.ResponseWriter, _ *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	answer(rw, w.ends, nil)
}

// serveWebSocket sends every message back as it came. It takes pages of its own
// host only, so that it shows if the host is not what the browser asked for.
func (w *wire) serveWebSocket(rw http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(rw, r, nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(4 << 20)
	for {
		kind, message, err := conn.Read(context.Background())
		if err == nil {
			err = conn.Write(context.Background(), kind, message)
		}
		if err != nil {
			w.ended(r.URL.Query().Get("id"), fmt.Sprint(int(websocket.CloseStatus(err))))
			return
		}
	}
}

// serveFeed sends what is said as events.
func (w *wire) serveFeed(rw http.ResponseWriter, r *http.Request) {
	said := make(chan string, 16)
	w.mu.Lock()
	w.feeds[said] = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.feeds, said)
	}()
	rw.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(rw, "data: 1\n\n")
	control := http.NewResponseController(rw)
	for control.Flush() == nil {
		select {
		case text := <-said:
			fmt.Fprintf(rw, "data: %s\n\n", text)
		case <-r.Context().Done():
			return
		}
	}
}

func (w *wire) serveSay(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for feed := range w.feeds {
		feed <- r.URL.Query().Get("text")
	}
	answer(rw, len(w.feeds), nil)
}

// serveBlob sends so many bytes that everybody can compute, with their length
// or in chunks.
func serveBlob(rw http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.URL.Query().Get("bytes"), 10, 64)
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	rw.Header().Set("Content-Type", "application/octet-stream")
	if !r.URL.Query().Has("chunked") {
		rw.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	}
	io.CopyBuffer(struct{ io.Writer }{rw}, io.LimitReader(rand.NewChaCha8([32]byte{}), n), make([]byte, 256<<10))
}

// digest is the answer to an upload.
type digest struct {
	Bytes  int64
	SHA256 string
}

// serveSink reads the body and says what it was.
func (w *wire) serveSink(rw http.ResponseWriter, r *http.Request) {
	h := sha256.New()
	n, err := io.CopyBuffer(h, struct{ io.Reader }{r.Body}, make([]byte, 256<<10))
	if err != nil {
		w.ended(r.URL.Query().Get("id"), err.Error())
	}
	answer(rw, digest{n, hex.EncodeToString(h.Sum(nil))}, err)
}

// serveRefuse answers without reading the body.
func serveRefuse(rw http.ResponseWriter, _ *http.Request) {
	http.Error(rw, "not wanted", http.StatusExpectationFailed)
}

// serveDuplex sends each line of the body back as soon as it is there.
func serveDuplex(rw http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(rw)
	if r.ProtoMajor == 1 {
		if err := control.EnableFullDuplex(); err != nil {
			log.Print(err)
			return
		}
	}
	rw.Header().Set("Content-Type", "text/plain")
	if control.Flush() != nil {
		return
	}
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		fmt.Fprintf(rw, "echo %s\n", lines.Text())
		if control.Flush() != nil {
			return
		}
	}
}

// serveTrailers sends the body and the trailers of the request back.
func serveTrailers(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Trailer", "X-Sum")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		log.Print(err)
		return
	}
	rw.Write(body)
	sum := sha256.Sum256(body)
	rw.Header().Set("X-Sum", hex.EncodeToString(sum[:]))
	// Not announced, as gRPC does where there is nothing else to say.
	rw.Header().Set(http.TrailerPrefix+"X-Asked", r.Trailer.Get("X-Asked"))
}

// serveOpenEnd sends lines for ever in an answer that has no length: only the
// connection's end says where it ends.
func serveOpenEnd(rw http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		log.Print(err)
		return
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n")
	for err == nil {
		_, err = io.WriteString(conn, "line\n")
		time.Sleep(tick)
	}
}

// serveLinger answers never, and notes when its client goes away.
func (w *wire) serveLinger(_ http.ResponseWriter, r *http.Request) {
	w.ended(r.URL.Query().Get("id"), "there")
	<-r.Context().Done()
	w.ended(r.URL.Query().Get("id"), "gone")
}

// serveTogether answers as soon as n requests wait for it.
func (w *wire) serveTogether(rw http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.URL.Query().Get("n"))
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	all := w.together
	if w.waiting++; w.waiting == n {
		close(all)
		w.together, w.waiting = make(chan struct{}), 0
	}
	w.mu.Unlock()
	select {
	case <-all:
		answer(rw, n, nil)
	case <-r.Context().Done():
	}
}

// serveHeaders says what the request looked like here.
func serveHeaders(rw http.ResponseWriter, r *http.Request) {
	answer(rw, map[string]any{"Host": r.Host, "URI": r.RequestURI, "Header": r.Header}, nil)
}

//go:embed page.html
var page []byte

// servePage is a small application for a browser: a page, what belongs to it,
// and data that it asks for. page.html says what it does.
func servePage(rw http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/page/":
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		rw.Write(page)
	case "/page/style.css":
		rw.Header().Set("Content-Type", "text/css")
		io.WriteString(rw, "h1 { color: rgb(1, 2, 3) }\n")
	case "/page/script.js":
		rw.Header().Set("Content-Type", "text/javascript")
		io.WriteString(rw, "window.scriptLoaded = true\n")
	case "/page/data":
		answer(rw, map[string]any{"cookies": r.Header.Get("Cookie"), "uri": r.RequestURI}, nil)
	default:
		http.NotFound(rw, r)
	}
}
