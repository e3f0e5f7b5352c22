package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// maxClockSkew is the difference to the host's clock that is left alone; the
// timestamp is older than its arrival by the time of one request.
const maxClockSkew = 500 * time.Millisecond

func (a *Agent) handleHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

func (a *Agent) handleEnvs(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, a.settings.env())
}

// handleInit takes the host's settings after a start or a restore. Everything
// is checked before anything is taken over.
func (a *Agent) handleInit(w http.ResponseWriter, r *http.Request) {
	req, err := readInit(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	if !req.Timestamp.IsZero() {
		setClock(req.Timestamp)
	}
	if err := a.host.name(req.SandboxID); err != nil {
		writeError(w, faultf(internal, "set the host name: %w", err))
		return
	}
	named := a.names.has(req.SandboxID)
	if !named {
		if err := a.names.write(a.options, req.SandboxID); err != nil {
			writeError(w, faultf(internal, "write the sandbox's name: %w", err))
			return
		}
	}
	if err := writeFacts(a.options.GenerationFile, req); err != nil {
		writeError(w, faultf(internal, "write what differs in this generation: %w", err))
		return
	}
	if req.Authority != "" {
		if err := trust(a.options.Root, req.Authority); err != nil {
			writeError(w, faultf(internal, "have the sandbox trust its authority: %w", err))
			return
		}
	}
	a.observer.woke()
	a.settings.apply(req)
	a.host.succeed(req.HostSecret)
	if req.Copied {
		a.kernels.copies.Add(1)
	}
	if req.Services != nil {
		a.manager.Apply(req.Services)
	}
	w.WriteHeader(http.StatusNoContent)
	if named { // a wake need not wait for what is there, unless somebody inside has changed it
		_ = http.NewResponseController(w).Flush()
		_ = a.names.write(a.options, req.SandboxID)
	}
}

func readInit(w http.ResponseWriter, r *http.Request) (*agentapi.InitRequest, error) {
	req := &agentapi.InitRequest{}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMessage)).Decode(req); err != nil && err != io.EOF {
		return nil, faultf(invalid, "body of /init: %w", err)
	}
	if bad := agentapi.BadVariable(req.EnvVars); bad != "" {
		return nil, faultf(invalid, "body of /init has %s", bad)
	}
	return req, nil
}

// setClock follows the host's clock. gVisor does so by itself and refuses.
func setClock(now time.Time) {
	if skew := time.Since(now).Abs(); skew <= maxClockSkew {
		return
	}
	ts := unix.NsecToTimespec(now.UnixNano())
	_ = unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
}

// names are the files with the sandbox's name in them, which are the same in each
// generation. A file that is still as it was written is not written again. It is safe for
// concurrent use.
type names struct {
	mu      sync.Mutex
	name    string                 // the last that all of them had
	written map[string]os.FileInfo // as they were then
}

// has reports whether the files were written with a name.
func (n *names) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return name != "" && n.name == name
}

// write writes the files, except those that have the name.
func (n *names) write(o Options, id string) error {
	if id == "" {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.name != id {
		n.name, n.written = "", map[string]os.FileInfo{}
	}
	hostname, machine := beside(o.GenerationFile, agentapi.HostnameFile), beside(o.GenerationFile, agentapi.MachineIDFile)
	hosts := filepath.Join(o.Root, "/etc/hosts")
	err := errors.Join(
		n.renew(hostname, func() error { return writeFact(hostname, id) }),
		n.renew(machine, func() error { return writeFact(machine, machineID(id)) }),
	)
	if err != nil {
		return err
	}
	_ = n.renew(hosts, func() error { return nameInHosts(hosts, id) })
	n.name = id
	return nil
}

// renew has do write a file that is not as it was written. It is called with mu held.
func (n *names) renew(file string, do func() error) error {
	if was := n.written[file]; was != nil {
		now, err := os.Stat(file)
		if err == nil && os.SameFile(now, was) && now.Size() == was.Size() && now.ModTime().Equal(was.ModTime()) && now.Mode() == was.Mode() {
			return nil
		}
	}
	delete(n.written, file)
	if err := do(); err != nil {
		return err
	}
	if info, err := os.Stat(file); err == nil {
		n.written[file] = info
	}
	return nil
}

// beside returns where a file is that lies beside another.
func beside(file, name string) string { return filepath.Join(filepath.Dir(file), filepath.Base(name)) }

// writeFacts writes the files that say which generation this is.
func writeFacts(file string, req *agentapi.InitRequest) error {
	if req.Instance != "" {
		if err := writeFact(beside(file, agentapi.InstanceFile), req.Instance); err != nil {
			return err
		}
	}
	if req.Generation == nil {
		return nil
	}
	return writeFact(file, strconv.FormatInt(*req.Generation, 10))
}

// ownName ends the line of /etc/hosts that is the agent's. A fork gets another one.
const ownName = " # this sandbox"

// maxHosts bounds what is read of /etc/hosts.
const maxHosts = 1 << 20

// nameInHosts has a sandbox find its own name. Where the file cannot be changed, as
// on a full disk, the sandbox runs without.
func nameInHosts(file, id string) error {
	in, _, err := openRegular(file)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(in, maxHosts+1))
	in.Close()
	if err != nil || len(text) > maxHosts {
		return err
	}
	var lines []byte
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte(ownName)) {
			lines = append(lines, line...)
		}
	}
	// What listens at its own name is to be found at 127.0.0.1.
	return replaceFile(file, joined(lines, []byte("127.0.0.1\t"+id+ownName+"\n")))
}

// machineID returns 32 hex digits that no other sandbox has.
func machineID(sandbox string) string {
	sum := sha256.Sum256([]byte("machine of " + sandbox))
	return hex.EncodeToString(sum[:16])
}

// writeFact replaces the file, so that readers see one text or the other.
func writeFact(file, text string) error {
	write := func() error { return os.WriteFile(file+".next", []byte(text+"\n"), 0o644) }
	err := write()
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), write())
	}
	if err != nil {
		return err
	}
	return os.Rename(file+".next", file)
}
