package mitos

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
)

// framed returns messages as a client sends them.
func framed(messages ...string) []byte {
	var out []byte
	for _, m := range messages {
		out = append(out, frame(0, json.RawMessage(m))...)
	}
	return out
}

// raw returns a frame with whatever bytes.
func raw(message string) []byte {
	return append([]byte{0, byte(len(message) >> 24), byte(len(message) >> 16), byte(len(message) >> 8), byte(len(message))}, message...)
}

// received is what an upload makes of a body.
func received(sent []byte, slowly bool) (open string, data []byte, err error) {
	var in io.Reader = bytes.NewReader(sent)
	if slowly {
		in = iotest.OneByteReader(in)
	}
	u := newUpload(&call{r: httptest.NewRequest("POST", "/", in)})
	first, err := u.first()
	if err != nil {
		return "", nil, err
	}
	data, err = io.ReadAll(u)
	return string(first), data, err
}

const openFrame = `{"open":{"path":"/x"}}`

// uploaded is a body and what is in it.
type uploaded struct {
	sent []byte
	want string
}

func goodUploads() map[string]uploaded {
	hello := base64.StdEncoding.EncodeToString([]byte("hello, world"))
	return map[string]uploaded{
		"nothing":        {raw(openFrame), ""},
		"one":            {append(raw(openFrame), raw(`{"data":"`+hello+`"}`)...), "hello, world"},
		"two":            {append(append(raw(openFrame), raw(`{"data":"aGVs"}`)...), raw(`{"data":"bG8="}`)...), "hello"},
		"spaced":         {append(raw(openFrame), raw("{\n\t\"data\" : \"aGVs\" \r}")...), "hel"},
		"empty":          {append(raw(openFrame), raw(`{"data":""}`)...), ""},
		"left out":       {append(append(raw(openFrame), raw(`{}`)...), raw(`{"data":"aGVs"}`)...), "hel"},
		"escaped slash":  {append(raw(openFrame), raw(`{"data":"\/\/\/\/"}`)...), "\xff\xff\xff"},
		"escaped letter": {append(raw(openFrame), raw(`{"data":"\u0061GVs"}`)...), "hel"},
	}
}

// badUploads are bodies that are refused.
func badUploads() map[string][]byte {
	return map[string][]byte{
		"no frame":            nil,
		"half a head":         {0, 0},
		"a first frame cut":   raw(openFrame)[:10],
		"a huge first frame":  {0, 0xff, 0xff, 0xff, 0xff},
		"compressed":          append([]byte{1}, raw(openFrame)[1:]...),
		"an end frame":        append(raw(openFrame), append([]byte{2}, raw(`{}`)[1:]...)...),
		"cut in its data":     append(raw(openFrame), raw(`{"data":"aGVs"}`)[:12]...),
		"cut after its data":  append(raw(openFrame), raw(`{"data":"aGVs"}`)[:18]...),
		"half a second head":  append(raw(openFrame), 0, 0, 0),
		"length too small":    append(raw(openFrame), append([]byte{0, 0, 0, 0, 10}, `{"data":"aGVs"}`...)...),
		"length too large":    append(raw(openFrame), append([]byte{0, 0, 0, 0, 99}, `{"data":"aGVs"}`...)...),
		"no object":           append(raw(openFrame), raw(`"data"`)...),
		"a null":              append(raw(openFrame), raw(`{"data":null}`)...),
		"a number":            append(raw(openFrame), raw(`{"data":5}`)...),
		"another field":       append(raw(openFrame), raw(`{"date":"aGVs"}`)...),
		"one field more":      append(raw(openFrame), raw(`{"data":"aGVs","eof":true}`)...),
		"data twice":          append(raw(openFrame), raw(`{"data":"aGVs","data":"aGVs"}`)...),
		"more after the end":  append(raw(openFrame), raw(`{"data":"aGVs"}{}`)...),
		"more after nothing":  append(raw(openFrame), raw(`{}x`)...),
		"no base64":           append(raw(openFrame), raw(`{"data":"!!!!"}`)...),
		"base64 cut":          append(raw(openFrame), raw(`{"data":"aGV"}`)...),
		"a line break":        append(raw(openFrame), raw("{\"data\":\"aG\nVs\"}")...),
		"an escape of a line": append(raw(openFrame), raw(`{"data":"aG\nVs"}`)...),
		"an escape of NUL":    append(raw(openFrame), raw(`{"data":"\u0000GVs"}`)...),
		"an escape cut":       append(raw(openFrame), raw(`{"data":"\u00"}`)...),
		"a second open":       append(raw(openFrame), raw(openFrame)...),
		"a very long name":    append(raw(openFrame), raw(`{"`+strings.Repeat("x", 1<<12)+`":"aGVs"}`)...),
	}
}

func TestUpload(t *testing.T) {
	for name, test := range goodUploads() {
		for _, slowly := range []bool{false, true} {
			first, data, err := received(test.sent, slowly)
			if err != nil || first != openFrame || string(data) != test.want {
				t.Errorf("%s: %q, %q, %v; want %q", name, first, data, err, test.want)
			}
		}
	}
	for name, sent := range badUploads() {
		for _, slowly := range []bool{false, true} {
			if first, data, err := received(sent, slowly); err == nil {
				t.Errorf("%s is taken: %q, %q", name, first, data)
			} else if e, ours := asError(err); !ours || e.Remedy == "" && e.Message == "" {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestUploadOfAnything: whatever bytes, in whatever frames, come out as they went in.
func TestUploadOfAnything(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		want := make([]byte, rnd.IntN(100_000))
		for i := range want {
			want[i] = byte(rnd.Uint32())
		}
		sent := framed(`{"open":{"path":"/x"}}`)
		for left := want; len(left) > 0; {
			n := 1 + rnd.IntN(len(left))
			sent = append(sent, frame(0, chunk{Data: left[:n]})...)
			left = left[n:]
		}
		if _, got, err := received(sent, false); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes became %d: %v", len(want), len(got), err)
		}
		if cut := rnd.IntN(len(sent)); len(want) > 0 { // nothing that is cut short within a frame is whole
			_, got, err := received(sent[:cut], false)
			if err == nil && bytes.Equal(got, want) {
				t.Fatalf("%d of %d bytes were taken for all", cut, len(sent))
			}
		}
	}
}

func FuzzUpload(f *testing.F) {
	for _, u := range goodUploads() {
		f.Add(u.sent)
	}
	for _, sent := range badUploads() {
		f.Add(sent)
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		_, data, err := received(sent, false)
		_, slow, slowly := received(sent, true)
		if (err == nil) != (slowly == nil) || err == nil && !bytes.Equal(data, slow) {
			t.Errorf("%q, %v read at once, %q, %v by bytes", data, err, slow, slowly)
		}
		if len(data) > len(sent) {
			t.Errorf("%d bytes made %d", len(sent), len(data))
		}
	})
}
