package edge

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// newFleet2 is newFleet whose servers inside speak HTTP/2 as well.
func newFleet2(t *testing.T, h http.HandlerFunc) *fleet {
	f := newFleet(t, h)
	f.upstream.Close()
	f.upstream = httptest.NewUnstartedServer(h)
	f.upstream.Config.Protocols = new(http.Protocols)
	f.upstream.Config.Protocols.SetHTTP1(true)
	f.upstream.Config.Protocols.SetUnencryptedHTTP2(true)
	f.upstream.Start()
	t.Cleanup(f.upstream.Close)
	return f
}

// http2Client speaks HTTP/2 without TLS.
func http2Client(t *testing.T) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func request2(t *testing.T, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(headerSandbox, "ione")
	req.Header.Set(headerPort, fmt.Sprint(openPort))
	return req
}

// TestHTTP2CutBreaksOff holds that a stream is cut while both sides wait for
// the other, whichever protocol is spoken inside.
func TestHTTP2CutBreaksOff(t *testing.T) {
	for _, kind := range []string{"text/plain", "application/grpc"} {
		t.Run(kind, func(t *testing.T) {
			f := newFleet2(t, func(w http.ResponseWriter, r *http.Request) {
				rc := http.NewResponseController(w)
				_ = rc.EnableFullDuplex()
				fmt.Fprintln(w, "begin")
				_ = rc.Flush()
				_, _ = io.Copy(io.Discard, r.Body)
			})
			pr, pw := io.Pipe()
			defer pw.Close()
			req := request2(t, f.serve(t), pr)
			req.Header.Set("Content-Type", kind)
			resp, err := http2Client(t).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			out := bufio.NewReader(resp.Body)
			if line, err := out.ReadString('\n'); line != "begin\n" {
				t.Fatalf("first line %q, %v", line, err)
			}
			close(f.cut)
			if line, err := out.ReadString('\n'); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("after the cut: %q, %v; want an error", line, err)
			}
			f.wantReleased(t)
		})
	}
}

func TestHTTP2RequestTrailersPass(t *testing.T) {
	f := newFleet2(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, r.Trailer.Get("X-Asked"))
	})
	req := request2(t, f.serve(t), io.MultiReader(strings.NewReader("body")))
	req.Trailer = http.Header{"X-Asked": {"at the end"}}
	resp, err := http2Client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := body(t, resp); got != "at the end" {
		t.Errorf("the trailer inside is %q", got)
	}
}

// TestHTTP2EmptyAnswerEndsWithItsHead holds that an answer without a body is
// one frame, which is what makes it an error in gRPC.
func TestHTTP2EmptyAnswerEndsWithItsHead(t *testing.T) {
	f := newFleet2(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Length"] = nil // say nothing of it
		w.Header().Set("Grpc-Status", "9")
	})
	url, client := f.serve(t), http2Client(t)
	for range 200 {
		req := request2(t, url, nil)
		req.Header.Set("Content-Type", "application/grpc")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		// Go's client knows the length only if the stream has ended.
		if resp.ContentLength != 0 || resp.Header.Get("Grpc-Status") != "9" {
			t.Fatalf("length %d, header %v", resp.ContentLength, resp.Header)
		}
	}
}
