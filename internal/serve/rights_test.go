package serve

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// capabilityNames are all there are, in the order of their numbers.
var capabilityNames = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT
SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE
AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)

// TestUnitGrantsWhatIsNeeded: the systemd unit bounds the server to what it does
// not give up by itself.
func TestUnitGrantsWhatIsNeeded(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/drowse.service")
	if err != nil {
		t.Fatal(err)
	}
	var granted []string
	for line := range strings.Lines(string(unit)) {
		if set, ok := strings.CutPrefix(line, "CapabilityBoundingSet="); ok {
			granted = strings.Fields(set)
		}
	}
	for number, name := range capabilityNames {
		needed := !slices.Contains(neverNeeded, number)
		if given := slices.Contains(granted, "CAP_"+name); given != needed {
			t.Errorf("CAP_%s: granted by the unit %v, needed %v", name, given, needed)
		}
	}
	if want := len(capabilityNames) - len(neverNeeded); len(granted) != want {
		t.Errorf("the unit grants %d capabilities, want %d", len(granted), want)
	}
}
