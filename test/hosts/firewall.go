package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/drowse-dev/drowse/client"
)

// outside is another machine for this one: an address behind a router, in a
// namespace of its own. It ends with its namespace.
var outside = []string{
	"ip netns add outside",
	"ip link add up0 type veth peer name down0 netns outside",
	"ip address add 11.51.100.1/30 dev up0",
	"ip link set up0 up",
	"ip -n outside address add 11.51.100.2/30 dev down0",
	"ip -n outside link set down0 up",
	"ip -n outside link set lo up",
	"ip -n outside address add " + outsideAddr + "/32 dev lo",
	"ip route add " + outsideAddr + "/32 via 11.51.100.2",
}

const outsideAddr = "203.0.113.10"

// strict is a host's firewall that forwards nothing and lets in nothing but
// answers, as a careful operator's does, and Docker's the first half of it.
const strict = `table inet strict {
	chain in { type filter hook input priority 0; policy drop; ct state established,related accept; iif lo accept; }
	chain through { type filter hook forward priority 0; policy drop; }
}`

// firewall closes the host as a strict firewall does. Sandboxes reach the outside
// and are reached all the same: the server carries their bytes, and the kernel
// forwards no packet of theirs.
func (g *guest) firewall(ctx context.Context) (err error) {
	for _, command := range outside {
		if _, err := output("sh", "-c", command); err != nil {
			return err
		}
	}
	serve := exec.Command("ip", "netns", "exec", "outside", "python3", "-m", "http.server", "80", "--bind", outsideAddr)
	if err := serve.Start(); err != nil {
		return err
	}
	defer func() {
		_ = serve.Process.Kill()
		_ = serve.Wait()
		_, e1 := output("nft", "delete table inet strict")
		_, e2 := output("ip", "netns", "delete", "outside") // its end of the pair takes the other along
		err = errors.Join(err, e1, e2)
	}()
	if _, err := output("nft", strict); err != nil {
		return err
	}
	c, err := g.counter(ctx, client.CreateOptions{})
	if err != nil {
		return err
	}
	for _, generations := range []int64{0, 1} { // made behind the firewall, and woken there
		if c, err = g.goesOn(ctx, c, generations); err != nil {
			return g.withJournal(err)
		}
		err := poll(ctx, func() error {
			out, err := g.exec(ctx, c.ID, "curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "http://"+outsideAddr+"/")
			if err == nil && strings.TrimSpace(out) != "200" {
				err = fmt.Errorf("the outside answered a sandbox with %q, want 200", out)
			}
			return err
		})
		if err != nil {
			return g.withJournal(err)
		}
		if err := g.client.Pause(ctx, c.ID); err != nil {
			return g.withJournal(err)
		}
	}
	return g.kill(ctx, c.ID)
}
