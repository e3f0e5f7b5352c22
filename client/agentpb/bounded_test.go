package agentpb_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/drowse-dev/drowse/client/agentpb"
	"github.com/drowse-dev/drowse/client/agentpb/filesystem"
	"github.com/drowse-dev/drowse/client/agentpb/filesystem/filesystemconnect"
	"github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
)

// longest is the longest list of a directory that an agent makes: 250,000 entries with
// paths of 32 MiB together.
func longest() *filesystem.ListDirResponse {
	m := &filesystem.ListDirResponse{}
	name := strings.Repeat("n", (32<<20)/250_000)
	for range 250_000 {
		m.Entries = append(m.Entries, &filesystem.EntryInfo{
			Name: name, Path: name, Size: 1 << 40, Mode: 0o644, Permissions: "-rw-r--r--", Owner: "user", Group: "user", ModifiedTime: timestamppb.Now(),
		})
	}
	return m
}

// serve answers every request with a body.
func serve(t *testing.T, header map[string]string, body func(w io.Writer)) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for name, value := range header {
			w.Header().Set(name, value)
		}
		body(w)
	}))
	t.Cleanup(s.Close)
	return s
}

// packed is a gzip stream of zeros, a thousandth of their length.
func packed(n int64) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.Copy(z, io.LimitReader(zeros{}, n))
	_ = z.Close()
	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestBoundedAnswers has an agent answer what would take all memory of the client.
func TestBoundedAnswers(t *testing.T) {
	const most = 64 << 20 // what may be allocated, for messages of 2 MiB
	list := func(ctx context.Context, url string) error {
		c := filesystemconnect.NewFilesystemClient(http.DefaultClient, url, agentpb.Bounded(agentpb.MaxProcess))
		_, err := c.ListDir(ctx, connect.NewRequest(&filesystem.ListDirRequest{}))
		return err
	}
	start := func(ctx context.Context, url string) error {
		c := processconnect.NewProcessClient(http.DefaultClient, url, agentpb.Bounded(agentpb.MaxProcess))
		stream, err := c.Start(ctx, connect.NewRequest(&process.StartRequest{}))
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
		}
		return stream.Err()
	}
	unary, stream := "application/proto", "application/connect+proto"
	for name, c := range map[string]struct {
		do     func(context.Context, string) error
		header map[string]string
		body   func(io.Writer)
	}{
		"a body without end":      {list, map[string]string{"Content-Type": unary}, func(w io.Writer) { _, _ = io.Copy(w, io.LimitReader(zeros{}, 256<<20)) }},
		"empty entries":           {list, map[string]string{"Content-Type": unary}, func(w io.Writer) { _, _ = w.Write(bytes.Repeat([]byte{0x0a, 0}, agentpb.MaxProcess/2-1)) }},
		"attributes of one entry": {list, map[string]string{"Content-Type": unary}, func(w io.Writer) { _, _ = w.Write(attributes(agentpb.MaxProcess - 100)) }},
		"what unpacks to 256 MiB": {list, map[string]string{"Content-Type": unary, "Content-Encoding": "gzip"}, func(w io.Writer) { _, _ = w.Write(packed(256 << 20)) }},
		"a frame of 4 GiB": {start, map[string]string{"Content-Type": stream}, func(w io.Writer) {
			_, _ = w.Write([]byte("\x00\xff\xff\xff\xff"))
			_, _ = io.Copy(w, io.LimitReader(zeros{}, 256<<20))
		}},
		"a frame that unpacks to more": {start, map[string]string{"Content-Type": stream, "Connect-Content-Encoding": "gzip"}, func(w io.Writer) {
			data := packed(256 << 20)
			_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(data))), data...))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, c.header, c.body)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := c.do(t.Context(), s.URL)
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Error("it is taken")
			}
			if spent := after.TotalAlloc - before.TotalAlloc; spent > most {
				t.Errorf("%d MiB were allocated", spent>>20)
			}
		})
	}
}

// attributes is a list of one entry with as many attributes as fit into so many bytes.
func attributes(most int) []byte {
	var entry []byte
	for i := uint32(0); len(entry) < most; i++ {
		pair := append([]byte{0x0a, 4}, binary.BigEndian.AppendUint32(nil, i)...)
		for j := range pair[2:] {
			pair[2+j] &= 0x7f // valid UTF-8
		}
		entry = append(append(entry, 0x5a, byte(len(pair))), pair...)
	}
	return append(binary.AppendUvarint([]byte{0x0a}, uint64(len(entry))), entry...)
}

// TestLongestListIsTaken: what a true agent says is taken, and comes out as it went in.
func TestLongestListIsTaken(t *testing.T) {
	want := longest()
	data, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, map[string]string{"Content-Type": "application/proto"}, func(w io.Writer) { _, _ = w.Write(data) })
	c := filesystemconnect.NewFilesystemClient(http.DefaultClient, s.URL, agentpb.Bounded(agentpb.MaxListing))
	got, err := c.ListDir(t.Context(), connect.NewRequest(&filesystem.ListDirRequest{Path: "/"}))
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got.Msg, want) {
		t.Error("it is another list")
	}
}
