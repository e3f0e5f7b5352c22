package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCurrent holds what is committed to what would be written now.
func TestCurrent(t *testing.T) {
	root := filepath.Join("..", "..")
	files, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d files are generated", len(files))
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is out of date: run go generate ./sdk/gen", name)
		}
	}
	committed, err := filepath.Glob(filepath.Join(root, python, "_sync", "*.py"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range committed {
		if name := python + "_sync/" + filepath.Base(file); files[name] == "" {
			t.Errorf("%s is left of what was generated before: remove it", name)
		}
	}
}

func TestSynchronous(t *testing.T) {
	got := synchronous("x.py", `class AsyncThing:
    async def __aenter__(self) -> AsyncGenerator[dict[str, Any], None]:
        async with await self._open() as asynchronous:
            return [x async for x in asynchronous.aiter_bytes()]
`)
	want := `class Thing:
    def __enter__(self) -> Generator[dict[str, Any], None, None]:
        with self._open() as synchronous:
            return [x for x in synchronous.iter_bytes()]
`
	if _, code, _ := strings.Cut(got, "\n"); code != want {
		t.Errorf("got %s", got)
	}
}

func TestVersion(t *testing.T) {
	lock := "{\n  \"name\": \"a\",\n  \"version\": \"1\",\n  \"lockfileVersion\": 3,\n  \"packages\": {\n    \"\": {\n      \"version\": \"1\"\n    },\n    \"b\": {\n      \"version\": \"7\"\n    }\n  }\n}\n"
	if got, want := withVersion(lock, "2.0.0"), strings.ReplaceAll(lock, `"1"`, `"2.0.0"`); got != want {
		t.Errorf("got %s", got)
	}
}

func TestNames(t *testing.T) {
	for wire, want := range map[string]string{
		"idleTimeoutSeconds": "idle_timeout", "memoryMiB": "memory_mib", "seconds": "seconds", "from": "from_", "httpsPorts": "https_ports",
	} {
		if got := snake(wire); got != want {
			t.Errorf("%s: got %s, want %s", wire, got, want)
		}
	}
}
