package quota

import "sync"

// Changes notes the keys whose sandboxes have become more or fewer.
type Changes struct {
	mu   sync.Mutex
	keys map[string]struct{}
	Some chan struct{} // has room for one: there are keys to take
}

// NewChanges returns changes of no key.
func NewChanges() *Changes {
	return &Changes{keys: map[string]struct{}{}, Some: make(chan struct{}, 1)}
}

// Note adds a key.
func (c *Changes) Note(key string) {
	c.mu.Lock()
	c.keys[key] = struct{}{}
	c.mu.Unlock()
	select {
	case c.Some <- struct{}{}:
	default: // they are about to be taken
	}
}

// Take returns the keys that were noted since it was called last.
func (c *Changes) Take() map[string]struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := c.keys
	c.keys = map[string]struct{}{}
	return keys
}
