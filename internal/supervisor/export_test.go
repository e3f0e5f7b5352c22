package supervisor

import "testing"

// OpenForContract returns a supervisor on a bench of its own, for tests that see no
// more of it than its callers do. It has the template "test".
func OpenForContract(t *testing.T) *Supervisor {
	s, _ := newBench(t).open()
	return s
}
