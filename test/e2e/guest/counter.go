package main

import (
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
)

// counter counts the POST requests to it, in memory alone, and tells each its
// number and which generation served it.
type counter struct {
	mu    sync.Mutex
	count int64
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Method == http.MethodPost {
		c.count++
	}
	g, err := generation()
	answer(w, map[string]any{"Count": c.count, "Generation": g}, err)
}

// generation is what the agent says of the runtime that serves.
func generation() (string, error) {
	data, err := os.ReadFile("/run/drowse/generation")
	return strings.TrimSpace(string(data)), err
}

// countOne makes a request to the counter and prints the answer.
func countOne() error {
	resp, err := http.Post("http://127.0.0.1:8000", "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}
