// With a file of assembler in the package, Go takes functions without a body, which
// are functions of gVisor (see early.go).
