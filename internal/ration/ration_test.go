package ration

import (
	"sync"
	"testing"
)

func TestTakesForAllOrNone(t *testing.T) {
	r := New(10)
	key, address := Holder{"key:a", 6}, Holder{"address:1", 4}
	for _, c := range []struct {
		n       int
		holders []Holder
		want    bool
		taken   int
	}{
		{4, []Holder{key, address}, true, 4},
		{1, []Holder{key, address}, false, 4}, // the address has 4
		{2, []Holder{key}, true, 6},
		{1, []Holder{key}, false, 6},
		{4, []Holder{{"key:b", 6}}, true, 10},
		{1, []Holder{{"key:c", 6}}, false, 10}, // nothing is left
		{1, nil, false, 10},
	} {
		if got := r.Take(c.n, c.holders...); got != c.want || r.Taken() != c.taken {
			t.Errorf("Take(%d, %v) = %v with %d taken, want %v with %d", c.n, c.holders, got, r.Taken(), c.want, c.taken)
		}
	}
	if a, b, nobody := r.Of("key:a"), r.Of("key:b"), r.Of("key:c"); a != 6 || b != 4 || nobody != 0 {
		t.Errorf("the holders have %d, %d and %d; want 6, 4 and 0", a, b, nobody)
	}
	r.Give(4, key, address)
	r.Give(2, key)
	r.Give(4, Holder{"key:b", 6})
	if r.Taken() != 0 || len(r.by) != 0 {
		t.Errorf("%d taken by %v after all was given back", r.Taken(), r.by)
	}
}

func TestNoMoreIsTakenThanThereIs(t *testing.T) {
	r := New(50)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			h := Holder{"one", 20}
			for range 1000 {
				if r.Take(7, h) {
					if n := r.Taken(); n > 20 {
						t.Errorf("%d are taken", n)
					}
					r.Give(7, h)
				}
			}
		})
	}
	all.Wait()
	if r.Taken() != 0 {
		t.Errorf("%d stayed taken", r.Taken())
	}
}
