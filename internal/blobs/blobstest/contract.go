package blobstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// Run holds a store against the contract of [blobs.Store]. Each store that open returns
// is empty, but for blobs of the tests before it below other prefixes.
func Run(t *testing.T, open func(t *testing.T) blobs.Store) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, s blobs.Store)
	}{
		{"PutAndGet", putAndGet},
		{"Replace", replace},
		{"Sizes", sizes},
		{"Most", most},
		{"Absent", absent},
		{"Remove", remove},
		{"ListBelow", listBelow},
		{"ListMany", listMany},
		{"ListAndRemove", listAndRemove},
		{"HostileKeys", hostileKeys},
		{"CallerReusesData", callerReusesData},
		{"EndsWithContext", endsWithContext},
		{"Abreast", abreast},
		{"PutAndRemoveAbreast", putAndRemoveAbreast},
		{"WholeOrNothing", wholeOrNothing},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func put(t *testing.T, s blobs.Store, key string, data []byte) {
	t.Helper()
	if err := s.Put(t.Context(), key, data); err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
}

func get(t *testing.T, s blobs.Store, key string) []byte {
	t.Helper()
	data, err := s.Get(t.Context(), key, 1<<30)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	return data
}

// Keys returns the keys of what is below a prefix.
func Keys(t testing.TB, s blobs.Store, prefix string) map[string]blobs.Blob {
	t.Helper()
	found := map[string]blobs.Blob{}
	for b, err := range s.List(t.Context(), prefix) {
		if err != nil {
			t.Fatalf("list %q: %v", prefix, err)
		}
		if _, twice := found[b.Key]; twice {
			t.Errorf("list %q: %s is there twice", prefix, b.Key)
		}
		found[b.Key] = b
	}
	return found
}

// random returns bytes that no other call returns.
func random(n int) []byte {
	data := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(rand.Int()), byte(rand.Int()), byte(rand.Int())})
	_, _ = r.Read(data) // it returns no error
	return data
}

func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	if errdef.CodeOf(err) != code {
		t.Errorf("%s: %v, of code %q, want %q", what, err, errdef.CodeOf(err), code)
	}
}

func putAndGet(t *testing.T, s blobs.Store) {
	const key = "some/where/a-b_c.0"
	want := random(5000)
	before := time.Now()
	put(t, s, key, want)
	if got := get(t, s, key); !bytes.Equal(got, want) {
		t.Errorf("got %d bytes that are not those of %d that were put", len(got), len(want))
	}
	b, ok := Keys(t, s, "some")[key]
	if !ok || b.Size != 5000 {
		t.Errorf("listed: %t, %+v", ok, b)
	}
	if d := b.At.Sub(before); d < -time.Minute || d > testmode.Patience() {
		t.Errorf("it was put at %s, after %s", b.At, before)
	}
	if s.String() == "" {
		t.Error("the store has no name")
	}
}

func replace(t *testing.T, s blobs.Store) {
	for _, size := range []int{100, 3, 70_000, 0} {
		want := random(size)
		put(t, s, "k/v", want)
		if got := get(t, s, "k/v"); !bytes.Equal(got, want) {
			t.Errorf("got %d bytes, want those of %d", len(got), len(want))
		}
	}
	if n := len(Keys(t, s, "k")); n != 1 {
		t.Errorf("%d blobs, want 1", n)
	}
}

func sizes(t *testing.T, s blobs.Store) {
	for i, size := range []int{0, 1, 4096, 1<<20 + 1, 16 << 20, 17<<20 + 3} {
		key := fmt.Sprintf("sizes/%d", i)
		want := random(size)
		put(t, s, key, want)
		got, err := s.Get(t.Context(), key, int64(size))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: got %d, %v", size, len(got), err)
		}
	}
}

func most(t *testing.T, s blobs.Store) {
	put(t, s, "most/k", random(1000))
	for _, n := range []int64{0, 1, 999} {
		got, err := s.Get(t.Context(), "most/k", n)
		wantCode(t, fmt.Sprintf("get at most %d of 1000 bytes", n), err, "blob_too_large")
		if len(got) > 0 {
			t.Errorf("got %d bytes with the error", len(got))
		}
	}
	if got, err := s.Get(t.Context(), "most/k", 1000); err != nil || len(got) != 1000 {
		t.Errorf("get at most 1000 of 1000 bytes: %d, %v", len(got), err)
	}
}

func absent(t *testing.T, s blobs.Store) {
	put(t, s, "there/is/one", []byte("x"))
	for _, key := range []string{"none", "there/none", "there/is", "there", "there/is/on"} {
		_, err := s.Get(t.Context(), key, 10)
		wantCode(t, "get "+key, err, "blob_not_found")
		if !errdef.Is(err, errdef.NotFound) {
			t.Errorf("get %s: class %s", key, errdef.ClassOf(err))
		}
	}
	for _, prefix := range []string{"none", "there/none", "there/is/one", "there/is/on"} {
		if found := Keys(t, s, prefix); len(found) > 0 {
			t.Errorf("below %s is %v", prefix, found)
		}
	}
}

func remove(t *testing.T, s blobs.Store) {
	ctx := t.Context()
	for _, key := range []string{"r/a/1", "r/a/2", "r/b/1", "r/c"} {
		put(t, s, key, []byte(key))
	}
	if err := s.Remove(ctx); err != nil {
		t.Errorf("remove nothing: %v", err)
	}
	if err := s.Remove(ctx, "r/a/1", "r/none/at/all", "r/b/1", "none"); err != nil {
		t.Errorf("remove two that are there, and two that are not: %v", err)
	}
	if err := s.Remove(ctx, "r/a/1"); err != nil {
		t.Errorf("remove one again: %v", err)
	}
	if err := s.Remove(ctx, "r/a"); err != nil {
		t.Errorf("remove what only has blobs below it: %v", err)
	}
	found := Keys(t, s, "r")
	if _, a := found["r/a/2"]; !a || len(found) != 2 {
		t.Errorf("left are %v", found)
	}
	_, err := s.Get(ctx, "r/a/1", 10)
	wantCode(t, "get what was removed", err, "blob_not_found")
	put(t, s, "r/a/1", []byte("again"))
	if got := get(t, s, "r/a/1"); string(got) != "again" {
		t.Errorf("got %q", got)
	}
}

func listBelow(t *testing.T, s blobs.Store) {
	for _, key := range []string{"l/a/1", "l/a/2/3", "l/ab/1", "l/a-b", "la", "l/a.b/1"} {
		put(t, s, key, []byte(key))
	}
	for prefix, want := range map[string]int{"l": 5, "l/a": 2, "l/a/2": 1, "l/ab": 1, "l/a.b": 1, "l/a/1": 0, "la": 0} {
		if found := Keys(t, s, prefix); len(found) != want {
			t.Errorf("below %s: %v, want %d", prefix, found, want)
		}
	}
	all := Keys(t, s, "")
	for _, key := range []string{"l/a/1", "la"} {
		if _, ok := all[key]; !ok {
			t.Errorf("of all, %s is missing", key)
		}
	}
	n := 0
	for range s.List(t.Context(), "l") {
		if n++; n == 2 {
			break // the store must bear that nobody wants the rest
		}
	}
	if n != 2 {
		t.Errorf("%d were listed before the break", n)
	}
}

// listMany has more blobs than one request for a list gives.
func listMany(t *testing.T, s blobs.Store) {
	n := testmode.Choose(1050, 2050)
	var work sync.WaitGroup
	errs := make(chan error, 8)
	for w := range 8 {
		work.Go(func() {
			for i := w; i < n; i += 8 {
				if err := s.Put(t.Context(), fmt.Sprintf("many/%02d/%d", i%37, i), []byte("x")); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	work.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
	found := Keys(t, s, "many")
	if len(found) != n {
		t.Errorf("%d are listed, want %d", len(found), n)
	}
	var all []string
	for key := range found {
		all = append(all, key)
	}
	if err := s.Remove(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	if found := Keys(t, s, "many"); len(found) != 0 {
		t.Errorf("%d are left", len(found))
	}
}

// listAndRemove removes what a list names, while it is listed.
func listAndRemove(t *testing.T, s blobs.Store) {
	for i := range 20 {
		put(t, s, fmt.Sprintf("both/%d/x", i), []byte("x"))
	}
	n := 0
	for b, err := range s.List(t.Context(), "both") {
		if err == nil {
			n++
			err = s.Remove(t.Context(), b.Key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if found := Keys(t, s, "both"); n != 20 || len(found) != 0 {
		t.Errorf("%d were listed, and %v are left", n, found)
	}
}

// Hostile are no keys.
var Hostile = []string{
	"", "/", ".", "..", "a/", "/a", "a//b", "../a", "a/../b", "a/..", "a/./b", ".a", "a/.b", "..a", "...",
	"A", "ä", "a b", "a\x00", "a\n", "a\\b", "a:b", "a%2e", "a?b", "a#b", "a*", "~a", "a/\xff", "%2e%2e/a",
	strings.Repeat("a", 201), strings.Repeat("a/", 400) + "a",
}

func hostileKeys(t *testing.T, s blobs.Store) {
	for _, key := range Hostile {
		wantCode(t, fmt.Sprintf("put %q", key), s.Put(t.Context(), key, []byte("x")), "blob_key_invalid")
		_, err := s.Get(t.Context(), key, 10)
		wantCode(t, fmt.Sprintf("get %q", key), err, "blob_key_invalid")
		wantCode(t, fmt.Sprintf("remove %q", key), s.Remove(t.Context(), "fine", key), "blob_key_invalid")
		if key == "" {
			continue
		}
		n := 0
		for _, err := range s.List(t.Context(), key) {
			n++
			wantCode(t, fmt.Sprintf("list %q", key), err, "blob_key_invalid")
		}
		if n != 1 {
			t.Errorf("list %q: %d results", key, n)
		}
	}
	long := strings.Repeat("a", 200) + "/" + strings.Repeat("b", 200) + "/" + strings.Repeat("c", 200) + "/" + strings.Repeat("d", 197)
	for _, key := range []string{"a", "0", "-", "_", "a.", "a..b", "-rf/_.-", long} {
		put(t, s, key, []byte(key))
		if got := get(t, s, key); string(got) != key {
			t.Errorf("%s: got %q", key, got)
		}
		if err := s.Remove(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
}

// callerReusesData holds that a store has no use for data once Put has returned, and
// that what Get returns is the caller's.
func callerReusesData(t *testing.T, s blobs.Store) {
	data := random(1 << 20)
	want := bytes.Clone(data)
	put(t, s, "reused", data)
	clear(data)
	got := get(t, s, "reused")
	if !bytes.Equal(got, want) {
		t.Error("the blob changed with the caller's data")
	}
	clear(got)
	if !bytes.Equal(get(t, s, "reused"), want) {
		t.Error("the blob changed with what Get had returned")
	}
}

func endsWithContext(t *testing.T, s blobs.Store) {
	put(t, s, "ctx/old", []byte("old"))
	why := errors.New("the test's reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	check := func(what string, err error) {
		if !errors.Is(err, why) {
			t.Errorf("%s with a ctx that is over: %v", what, err)
		}
	}
	check("put", s.Put(ctx, "ctx/old", []byte("new")))
	_, err := s.Get(ctx, "ctx/old", 10)
	check("get", err)
	check("remove", s.Remove(ctx, "ctx/old"))
	n := 0
	for _, err := range s.List(ctx, "ctx") {
		check("list", err)
		n++
	}
	if n != 1 {
		t.Errorf("list: %d results, want the error", n)
	}
	if got := get(t, s, "ctx/old"); string(got) != "old" {
		t.Errorf("the blob is %q now", got)
	}
}

func abreast(t *testing.T, s blobs.Store) {
	var work sync.WaitGroup
	for w := range 40 {
		work.Go(func() {
			key := fmt.Sprintf("abreast/%d/k", w)
			want := random(10_000)
			for range 3 {
				if err := s.Put(t.Context(), key, want); err != nil {
					t.Error(err)
				}
				got, err := s.Get(t.Context(), key, 10_000)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				for _, err := range s.List(t.Context(), "abreast") {
					if err != nil {
						t.Error(err)
					}
				}
			}
			if err := s.Remove(t.Context(), key); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
}

// putAndRemoveAbreast has blobs put where others of the same name are removed: no Put
// may fail because a directory goes away, and no blob be lost.
func putAndRemoveAbreast(t *testing.T, s blobs.Store) {
	var work sync.WaitGroup
	for w := range 6 {
		work.Go(func() {
			key := fmt.Sprintf("racing/deep/down/%d", w)
			for range 30 {
				if err := s.Put(t.Context(), key, []byte("x")); err != nil {
					t.Errorf("put: %v", err)
					return
				}
				if _, err := s.Get(t.Context(), key, 1); err != nil {
					t.Errorf("get: %v", err)
					return
				}
				if err := s.Remove(t.Context(), key); err != nil {
					t.Errorf("remove: %v", err)
					return
				}
			}
		})
	}
	work.Wait()
}

// wholeOrNothing cuts Puts off at any time, while others read.
func wholeOrNothing(t *testing.T, s blobs.Store) {
	const size = 4 << 20
	valid := func(data []byte) bool {
		return len(data) == size && bytes.Count(data, data[:1]) == size
	}
	put(t, s, "whole/k", bytes.Repeat([]byte{1}, size))
	begin := time.Now()
	put(t, s, "whole/k", bytes.Repeat([]byte{2}, size))
	whole := time.Since(begin)
	cut, late := 0, false // a Put that was cut off may come late
	tries := testmode.Choose(16, 80)
	for i := range tries {
		ctx, cancel := context.WithTimeout(t.Context(), whole*time.Duration(4*i)/time.Duration(3*tries))
		err := s.Put(ctx, "whole/k", bytes.Repeat([]byte{byte(3 + i)}, size))
		cancel()
		if err != nil {
			cut++
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("cut off: %v", err)
			}
		}
		got := get(t, s, "whole/k")
		if !valid(got) {
			t.Fatalf("after Put had returned %v there are %d bytes, %d of them alike", err, len(got), bytes.Count(got, got[:1]))
		}
		if err == nil && got[0] != byte(3+i) && !late {
			t.Errorf("Put returned nil, and there is another blob")
		}
		late = err != nil
		ctx, cancel = context.WithTimeout(t.Context(), whole*time.Duration(4*i)/time.Duration(3*tries))
		key := fmt.Sprintf("whole/new-%d", i)
		err = s.Put(ctx, key, bytes.Repeat([]byte{9}, size))
		cancel()
		got, missing := s.Get(t.Context(), key, size)
		if errdef.CodeOf(missing) == "blob_not_found" && err != nil {
			continue
		}
		if missing != nil || !valid(got) {
			t.Fatalf("Put returned %v, and Get has %d bytes, %v", err, len(got), missing)
		}
	}
	if cut == 0 {
		t.Error("no Put was cut off")
	}
	for key, b := range Keys(t, s, "") {
		if strings.HasPrefix(key, "whole/") && b.Size != size {
			t.Errorf("%s has %d bytes", key, b.Size)
		}
	}
}
