package ui

import (
	"net/http/httptest"
	"testing"
)

// TestFront: browsers that look at the address get the page, and nobody else.
func TestFront(t *testing.T) {
	for want, asks := range map[bool][][3]string{
		true:  {{"GET", "/", "text/html"}, {"GET", "/?x=1", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}},
		false: {{"GET", "/", ""}, {"GET", "/", "*/*"}, {"GET", "/", "application/json"}, {"POST", "/", "text/html"}, {"HEAD", "/", "text/html"}, {"GET", "/sandboxes", "text/html"}, {"GET", "//", "text/html"}},
	} {
		for _, ask := range asks {
			r := httptest.NewRequest(ask[0], "http://here"+ask[1], nil)
			r.Header.Set("Accept", ask[2])
			if got := AsksFront(r); got != want {
				t.Errorf("%v: %v, want %v", ask, got, want)
			}
		}
	}
}
