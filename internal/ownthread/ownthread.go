// Package ownthread runs what changes the state of a thread: its namespaces, its
// rights, its priority, its working directory.
//
// A thread that such a function has used is never used again: it ends with the
// function. Go ends every thread but the first, which it parks instead, as it is. So
// the first thread belongs to the main goroutine in every program that imports this
// package, and no other goroutine ever runs there. /proc/self, which gVisor and others
// read, shows that thread's state as the process's.
package ownthread

import goruntime "runtime"

func init() { goruntime.LockOSThread() } // nobody unlocks it

// Run calls f on a thread of its own. A child that f starts with a parent-death signal
// dies with the thread: f has to wait for it.
func Run(f func() error) error {
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread() // and never unlock it: the thread ends with this goroutine
		done <- f()
	}()
	return <-done
}
