package gvisor

// edits names what was changed in the code of gVisor that is linked in; empty for
// none. "make build" has this file replaced together with gVisor's (see package
// overlay), so that a program knows how it was built.
const edits = ""
