package serve

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// TestKernelCallsAreDocumented holds the table in the docs against the calls.
func TestKernelCallsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/kernels.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range kernelCalls {
		if row := fmt.Sprintf("| `%s` | %s |", c.name, c.since); !strings.Contains(string(page), row) {
			t.Errorf("docs/kernels.md has no row that begins with %s", row)
		}
	}
	if !strings.Contains(string(page), "Linux "+leastKernel) {
		t.Errorf("docs/kernels.md does not name Linux %s", leastKernel)
	}
}

func TestKernelTooOld(t *testing.T) {
	if err := needKernel(); err != nil {
		t.Fatalf("the kernel of this test: %v", err)
	}
	all := kernelCalls
	defer func() { kernelCalls = all }()
	kernelCalls = append([]kernelCall{
		{"young_call", "99.1", true, func() error { return unix.ENOSYS }},
		{"spare_call", "99.2", false, func() error { return unix.ENOSYS }},
	}, all...)
	e, ok := errors.AsType[*errdef.Error](needKernel())
	if !ok || e.Code != "kernel_too_old" || !strings.Contains(e.Message, "young_call") || strings.Contains(e.Message, "spare_call") {
		t.Errorf("refusal: %v", e)
	}
	if f := calls(); f.OK || f.Remedy == "" {
		t.Errorf("finding: %+v", f)
	}
	kernelCalls = kernelCalls[1:]
	if f := calls(); !f.OK || !strings.Contains(f.Detail, "spare_call") {
		t.Errorf("finding without what can be missing: %+v", f)
	}
}

// TestDoctorTriesTheStateDirectory tries overlays where the state directory would be.
func TestDoctorTriesTheStateDirectory(t *testing.T) {
	dir := t.TempDir()
	if f := overlays(dir + "/not/made/yet"); !f.OK || !strings.Contains(f.Detail, "redirect_dir=on") {
		t.Errorf("on a disk: %+v", f)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
	below := t.TempDir()
	for _, name := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(below, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("overlay", dir, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", below, below, below)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if f := overlays(dir); f.OK || f.Remedy == "" {
		t.Errorf("on an overlay: %+v", f)
	}
}
