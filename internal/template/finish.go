package template

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/tree"
)

// imageFormat changes when finish would make something else of the same image.
const imageFormat = "4"

// maxEtc bounds the files of an image's /etc that are changed.
const maxEtc = 1 << 20

// finish makes the template of an image for the agent of this server, unless it
// is there: over the layers of the image one more, with the agent and what every
// sandbox needs.
func (s *Store) finish(img image.Image) (Template, error) {
	id := s.imageID(img.Digest)
	if t, err := s.read(id); err == nil {
		return t, nil
	}
	if err := writePrograms(s.programs(), s.agent); err != nil {
		return Template{}, err
	}
	tmp, err := os.MkdirTemp(s.dir, unfinishedImage)
	if err != nil {
		return Template{}, err
	}
	defer s.make(filepath.Base(tmp))()
	defer tree.Remove(tmp) // an image names its working directory, which may be deep
	root := filepath.Join(tmp, "root")
	if err := mkdir(root, 0o755); err != nil {
		return Template{}, err
	}
	merged, err := s.images.Merge(root, img.Layers)
	if err != nil {
		return Template{}, err
	}
	defer merged.Close()
	f := finisher{Merged: merged, config: img.Config}
	if err := errors.Join(merged.Describe(), f.adapt(), f.addPrograms(s.programs())); err != nil {
		return Template{}, err
	}
	dir := filepath.Join(s.dir, id)
	t := Template{ID: id, Image: &img, User: f.user, Agent: f.agent, Trees: []layer.Tree{{Name: "root", Path: "/", Lowers: []string{filepath.Join(dir, "root")}}}}
	for _, l := range slices.Backward(img.Layers) {
		t.Trees[0].Lowers = append(t.Trees[0].Lowers, s.images.Files(l.ID))
	}
	data, err := json.Marshal(t)
	if err != nil {
		return Template{}, err
	}
	if err := os.WriteFile(filepath.Join(tmp, manifestName), data, 0o600); err != nil {
		return Template{}, err
	}
	// What has this name is taken for whole, also after a power cut.
	if err := durable.SyncFilesystem(tmp); err != nil {
		return Template{}, err
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return Template{}, err
	}
	return t, durable.Sync(s.dir)
}

// make notes that a template is being made under a name, until the function that
// it returns is called.
func (s *Store) make(name string) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making[name] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.making, name)
	}
}

// imageID is the id of the template of an image with this server's agent.
func (s *Store) imageID(digest string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %s %q %q", imageFormat, digest, s.agent.Sum, etcFiles, etcLinks)
	return imagePrefix + fmt.Sprintf("%x", h.Sum(nil))[:20]
}

// programs is where the agent's program is kept for all templates of images,
// whose own names of it are hard links.
func (s *Store) programs() string {
	return filepath.Join(s.dir, ociDir, "programs", s.agent.Sum[:16])
}

// writePrograms fills such a directory, unless that has been done.
func writePrograms(dir string, of Agent) error {
	if exists(dir) {
		return nil
	}
	agent, err := of.Program()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	err = errors.Join(
		writeFile(filepath.Join(tmp, "agent"), agent, 0o755),
		writeFile(filepath.Join(tmp, "sudo"), agent, fs.ModeSetuid|0o755),
	)
	if err == nil {
		err = durable.SyncFilesystem(tmp)
	}
	if err == nil {
		err = os.Rename(tmp, dir)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil // another has been as quick
	}
	return err
}

// finisher puts into the tree of an image what a sandbox needs.
type finisher struct {
	*image.Merged
	config image.Configuration
	user   string // as which commands run; empty for the usual one
	agent  string // where the agent is; empty for the usual path
}

func (f *finisher) addPrograms(dir string) error {
	real, err := f.MakeDir(path.Dir(AgentPath[1:]), image.Attributes{Mode: 0o755})
	if err != nil {
		return err
	}
	at := path.Join(real, path.Base(AgentPath))
	if "/"+at != AgentPath {
		f.agent = "/" + at
	}
	return errors.Join(
		f.Copy(filepath.Join(dir, "agent"), at),
		f.Copy(filepath.Join(dir, "sudo"), "usr/bin/sudo"),
		f.Symlink("sudo", "usr/bin/sudoedit"),
		f.Symlink("../lib/drowse/agent", "usr/bin/drowse-hold"),
	)
}

func (f *finisher) adapt() error {
	for _, d := range emptyDirs {
		if has, err := f.HasDir(d.path); err != nil {
			return err
		} else if has {
			continue
		}
		mode := uint32(d.mode.Perm())
		if d.mode&fs.ModeSticky != 0 {
			mode |= 0o1000
		}
		if _, err := f.MakeDir(d.path, image.Attributes{Mode: mode}); err != nil {
			return err
		}
	}
	for _, name := range []string{"hosts", "resolv.conf"} {
		if err := f.WriteFile("etc/"+name, []byte(etcFiles[name]), image.Attributes{Mode: 0o644}); err != nil {
			return err
		}
	}
	for name, target := range etcLinks {
		if err := f.Symlink(target, "etc/"+name); err != nil {
			return err
		}
	}
	return errors.Join(f.addRun(), f.addUsers(), f.addCertificates(bundles), f.addPath(), f.addWorkingDir())
}

// addRun makes the usual link where there is nothing.
func (f *finisher) addRun() error {
	has, err := f.Has("var/run")
	if has || err != nil {
		return err
	}
	return f.Symlink("/run", "var/run")
}

// bundles are where the host may have the certificates of all authorities.
var bundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}

// addCertificates gives an image without any those of the first file of the host
// that can be read. An image with some keeps to them.
func (f *finisher) addCertificates(host []string) error {
	for _, name := range bundles {
		if has, err := f.Has(name[1:]); has || err != nil {
			return err
		}
	}
	for _, name := range host {
		data, err := os.ReadFile(name)
		if err == nil {
			return f.WriteFile(bundles[0][1:], data, image.Attributes{Mode: 0o644})
		}
	}
	return nil // the host has none either
}

// addPath makes login shells keep the PATH of the image, which the /etc/profile
// of many distributions forgets.
func (f *finisher) addPath() error {
	for _, v := range f.config.Env {
		value, ok := strings.CutPrefix(v, "PATH=")
		if !ok || strings.ContainsAny(value, "'\n") {
			continue
		}
		return f.WriteFile("etc/profile.d/00-image-path.sh", []byte("export PATH='"+value+"'\n"), image.Attributes{Mode: 0o644})
	}
	return nil
}

// addWorkingDir makes the working directory of an image that does not have it.
func (f *finisher) addWorkingDir() error {
	dir := f.config.WorkingDir
	if dir == "" {
		return nil
	}
	if !path.IsAbs(dir) || strings.ContainsRune(dir, 0) {
		return image.Invalid("its working directory %.200q is no absolute path", dir)
	}
	has, err := f.HasDir(dir[1:])
	if has || err != nil {
		return err
	}
	_, err = f.MakeDir(dir[1:], image.Attributes{Mode: 0o755})
	return err
}

// addUsers sees to it that there are root, the user and the one whom the image
// runs as, each with a home.
func (f *finisher) addUsers() error {
	passwd, err := f.ReadFile("etc/passwd", maxEtc)
	if err != nil {
		return err
	}
	group, err := f.ReadFile("etc/group", maxEtc)
	if err != nil {
		return err
	}
	users, groups := newTable(passwd), newTable(group)
	shell := "/bin/sh"
	if has, err := f.Has("bin/bash"); err != nil {
		return err
	} else if has {
		shell = "/bin/bash"
	}
	users.add("root", "root:x:0:0:root:/root:"+shell)
	groups.add("root", "root:x:0:")
	users.add("user", fmt.Sprintf("user:x:%d:%[1]d:user:/home/user:%s", UserID, shell))
	groups.add("user", fmt.Sprintf("user:x:%d:", UserID))
	if err := f.chooseUser(&users, &groups); err != nil {
		return err
	}
	if err := errors.Join(
		f.Rewrite("etc/passwd", users.text, image.Attributes{Mode: 0o644}),
		f.Rewrite("etc/group", groups.text, image.Attributes{Mode: 0o644}),
	); err != nil {
		return err
	}
	return errors.Join(f.addHome(users.line("user")), f.addHome(users.line(f.user)))
}

// noHome is what Debian calls the home of those who are to have none.
const noHome = "/nonexistent"

// addHome makes the home of a user.
func (f *finisher) addHome(line []string) error {
	if len(line) < 7 || !path.IsAbs(line[5]) {
		return nil // an image's own idea of a user
	}
	if home := path.Clean(line[5]); home == "/" || home == noHome {
		return nil
	}
	has, err := f.Has(line[5][1:])
	if has || err != nil {
		return err
	}
	uid, err1 := strconv.ParseUint(line[2], 10, 31)
	gid, err2 := strconv.ParseUint(line[3], 10, 31)
	if err := errors.Join(err1, err2); err != nil {
		return image.Invalid("its /etc/passwd has a user without numbers: %v", err)
	}
	_, err = f.MakeDir(line[5][1:], image.Attributes{Mode: 0o755, UID: int(uid), GID: int(gid)})
	return err
}

// chooseUser finds as whom the image runs: a name or a number, and perhaps a group
// that takes the place of the user's own. An image that names nobody runs as the
// usual user. As in Docker, a number that has no name is of group 0.
func (f *finisher) chooseUser(users, groups *table) error {
	who, of, _ := strings.Cut(f.config.User, ":")
	if who == "" {
		return nil
	}
	gid, err := chooseGroup(of, groups)
	if err != nil {
		return err
	}
	name := who
	if users.line(who) == nil {
		uid, err := strconv.ParseUint(who, 10, 31)
		if err != nil {
			return image.Invalid("it runs as user %.100q, who is not in its /etc/passwd", who)
		}
		if name = users.byID(strconv.FormatUint(uid, 10)); name == "" {
			f.user = fmt.Sprintf("uid%d", uid)
			users.add(f.user, fmt.Sprintf("%s:x:%d:%s::/:/bin/sh", f.user, uid, cmp.Or(gid, "0")))
			return nil
		}
	}
	f.user = name
	line := users.line(name)
	if gid == "" || len(line) < 7 || line[3] == gid {
		return nil
	}
	// The same user, home and shell, with another group: what logs in is a name.
	f.user = name + "-gid" + gid
	users.add(f.user, strings.Join([]string{f.user, "x", line[2], gid, line[4], line[5], line[6]}, ":"))
	return nil
}

// chooseGroup returns the number of the group that an image runs as; empty for
// the one of the user.
func chooseGroup(of string, groups *table) (gid string, err error) {
	if of == "" {
		return "", nil
	}
	if line := groups.line(of); len(line) > 2 {
		return line[2], nil
	}
	n, err := strconv.ParseUint(of, 10, 31)
	if err != nil {
		return "", image.Invalid("it runs as group %.100q, which is not in its /etc/group", of)
	}
	gid = strconv.FormatUint(n, 10)
	if groups.byID(gid) == "" {
		groups.add("gid"+gid, "gid"+gid+":x:"+gid+":")
	}
	return gid, nil
}

// table is a file such as /etc/passwd.
type table struct{ text []byte }

func newTable(text []byte) table {
	text = bytes.Clone(text)
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n')
	}
	return table{text}
}

// line returns the fields of a name; nil if there is none.
func (t *table) line(name string) []string {
	for line := range strings.Lines(string(t.text)) {
		if f := strings.Split(strings.TrimRight(line, "\r\n"), ":"); f[0] == name {
			return f
		}
	}
	return nil
}

// byID returns the first name with a number; empty if there is none.
func (t *table) byID(id string) string {
	for line := range strings.Lines(string(t.text)) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] == id {
			return f[0]
		}
	}
	return ""
}

// add adds a line unless its name is there.
func (t *table) add(name, line string) {
	if t.line(name) == nil {
		t.text = append(t.text, line+"\n"...)
	}
}
