package e2e

import (
	"context"
	_ "embed"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

//go:embed testdata/packages.sh
var makePackages string

// TestPackages installs packages in the base, as a user of a machine of his own
// would: by apt-get, pip and npm, as root and as the user. They are still there
// after a sleep, and the host and the next sandbox have none of them.
func TestPackages(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 5*time.Minute)
	s := startServer(t)
	sb, other := s.create(ctx, sleeper), s.create(ctx, sleeper)
	succeeds(ctx, t, sb, makePackages)
	// The scripts of packages make users, and start what is theirs, with these.
	succeeds(ctx, t, sb, "sudo adduser --quiet --system --group --gecos 'My Service' svc && echo svc:secret | sudo chpasswd && sudo chfn -f Name user && sudo chsh -s /bin/sh svc")
	succeeds(ctx, t, sb, `[ "$(cd /; sudo su svc -c 'id -un'; sudo su - www-data -s /bin/sh -c 'id -un'; sudo runuser -u user -- id -un; echo secret | su svc -c 'id -un' 2>/dev/null)" = "svc
www-data
user
svc" ]`)
	succeeds(ctx, t, sb, "[ $(stat -c %a /run/screen/ /var/lock/ | sort -u) = 1777 ] && ! comm -13 <(sudo cut -d: -f1 /etc/shadow | sort) <(cut -d: -f1 /etc/passwd | sort) | grep .")
	// As bubblewrap does for a network of its own.
	succeeds(ctx, t, sb, "unshare --map-root-user --net sh -c 'ip address add 127.0.0.1/8 dev lo && ip link set lo up'")

	// The option says that there is one source, and so no need for a network.
	const only = "-o Dir::Etc::sourcelist=/tmp/repo/sources.list -o Dir::Etc::sourceparts=- "
	succeeds(ctx, t, sb, "sudo apt-get "+only+"update && sudo apt-get "+only+"install -y drowse-hello")
	succeeds(ctx, t, sb, "sudo apt-get install --reinstall --no-download -s libc6 && dpkg -S /bin/bash && sudo dpkg --audit")
	succeeds(ctx, t, sb, "pip install --no-index /tmp/drowse_hello_pip-1-py3-none-any.whl")
	succeeds(ctx, t, sb, "sudo pip install --no-index /tmp/drowse_hello_root-1-py3-none-any.whl")
	programs := []string{"drowse-hello", "drowse-hello-pip", "drowse-hello-root"}
	if _, err := os.Stat("/usr/bin/npm"); err == nil {
		succeeds(ctx, t, sb, "npm install -g --offline --no-audit --no-fund /tmp/npm-hello")
		programs = append(programs, "drowse-hello-npm")
	} else {
		// Debian's own npm conflicts with others that a machine may have, so
		// nobody installs it for this test. What it needs is tried without it.
		succeeds(ctx, t, sb, "grep -x prefix=/usr/local /usr/etc/npmrc /etc/npmrc && mkdir /usr/local/lib/node_modules/hello && touch /usr/local/bin/hello")
	}

	check := func(when string) {
		t.Helper()
		for _, program := range programs {
			if _, out := run(ctx, t, sb, program); out != program+"\n" {
				t.Errorf("%s: %s says %q", when, program, out)
			}
			if _, err := os.Stat("/usr/local/bin/" + program); err == nil {
				t.Errorf("%s: the host has %s", when, program)
			}
		}
		if _, out := run(ctx, t, sb, "cat", "/var/log/drowse-hello"); out != "installed by configure\n" {
			t.Errorf("%s: the package's script wrote %q", when, out)
		}
	}
	check("at once")
	s.pause(ctx, sb.ID)
	s.connect(ctx, sb.ID)
	check("after a sleep")
	if _, out := run(ctx, t, other, "bash", "-c", "command -v "+strings.Join(programs, " ")+"; dpkg -l drowse-hello 2>/dev/null"); out != "" {
		t.Errorf("another sandbox has %q", out)
	}
	succeeds(ctx, t, sb, "sudo apt-get remove -y drowse-hello && ! command -v drowse-hello")
}

// succeeds runs a command as SDKs do: in a login shell of the user.
func succeeds(ctx context.Context, t *testing.T, sb *client.Sandbox, script string) {
	t.Helper()
	if exit, out := run(ctx, t, sb, "/bin/bash", "-l", "-c", script); exit.Code != 0 {
		t.Fatalf("%s: %s:\n%s", script, exit.Status, out)
	}
}
