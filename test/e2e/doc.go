// Package e2e drives the real binary with real sandboxes: it starts the
// server, talks to it over HTTP as any client does, kills it, fills its disk,
// and looks at the host for what a sandbox keeps and for what it leaves behind.
// There is nothing here but tests.
//
// They must run as root, on a machine that can run sandboxes. Where the network
// has a way out, they first move into a network namespace without one, so that
// nothing passes because of the internet. Each test has a server, a state
// directory and a port of its own.
//
//	go test ./test/e2e
//	DROWSE_BINARY=bin/drowse go test ./test/e2e -run TestStorm -v
//
// script/deps and script/node install what they use.
//
// Without DROWSE_BINARY the binary is built from this tree. What runs inside
// the sandboxes is the program in guest and, for gRPC, the one in grpcguest;
// package filetree knows what a tree of files must look like after a number of
// changes. Where a browser is needed it is Chromium, driven by chromedriver.
package e2e
